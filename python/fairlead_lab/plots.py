"""Plots as SVG text, in one style. matplotlib draws them; nothing is shown and no file is written."""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

__all__ = ["bars", "heat", "lines"]

#: Told apart by people who see colours differently, and in print (after Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6775", "#1d2733"]
PUBLISHED = "#9aa5b1"

RC: Dict[str, Any] = {
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": "#1d2733",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "grid.color": "#e6eaee",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",
    "xtick.color": "#5b6775",
    "ytick.color": "#5b6775",
}


def _draw(
    draw: Callable[[Any, Any], None],
    size: Tuple[float, float],
    label: str,
) -> str:
    """Calls ``draw(figure, axes)`` and returns the SVG; ``label`` is the text for screen
    readers."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The salt makes the output reproducible.
    settings: Any = {**RC, "svg.hashsalt": label}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(figure, axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    # Names inside a picture are made unique, because a page has several pictures.
    mine = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{mine}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{_attribute(label)}"'
    return svg.replace("<svg", head, 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


#: More letters than this under an axis are set smaller, or they would touch.
TICK_LETTERS = 50
#: Letters that a line of the legend holds.
LEGEND_LETTERS = 76


def _plain(text: str) -> str:
    """Escapes a name: text between two dollars would be a formula."""
    return text.replace("$", r"\$")


def _legend(axes: Any, drawn: Mapping[str, Any], title: str = "") -> None:
    """A legend above the plot, in as many lines as needed."""
    if len(drawn) > 1:
        widest = max(len(name) for name in drawn) + 6
        # By numbers first: a label that begins with an underscore would be left out.
        legend = axes.legend(
            list(drawn.values()),
            [str(number) for number in range(len(drawn))],
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=max(1, min(len(drawn), LEGEND_LETTERS // widest)),
            borderaxespad=0.2,
            handlelength=1.4,
            columnspacing=1.4,
            title=_plain(title) or None,
            alignment="left",
        )
        for text, name in zip(legend.get_texts(), drawn):
            text.set_text(_plain(name))


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[Optional[float]]],
    ylabel: str,
    label: str,
    percent: bool = False,
    published: Sequence[str] = (),
    base: Optional[float] = None,
    xlabel: str = "",
    legend: str = "",
) -> str:
    """Bars side by side: for each of ``groups`` one of each series. Series whose names are in
    ``published`` are set in grey; ``base`` draws a line at that height. ``xlabel`` is what the groups
    are, and ``legend`` what the series are."""

    def draw(_figure: Any, axes: Any) -> None:
        width = 0.82 / max(len(series), 1)
        shade = _shades(series, published)
        drawn: Dict[str, Any] = {}
        for at, (name, values) in enumerate(series.items()):
            places = [
                group - 0.41 + width * (at + 0.5)
                for group, value in enumerate(values)
                if value is not None
            ]
            heights = [value for value in values if value is not None]
            hatch = "///" if name in published else None
            drawn[name] = axes.bar(
                places, heights, width * 0.92, color=shade[name], hatch=hatch,
                edgecolor="white", linewidth=0,
            )
        axes.set_xticks(range(len(groups)), [_plain(_short(group)) for group in groups])
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel(_plain(xlabel))
        axes.set_ylabel(ylabel)
        if base is not None:
            axes.axhline(base, color="#1d2733", linewidth=0.8)
        if percent:
            axes.yaxis.set_major_formatter("{x:.0%}")
        _legend(axes, drawn, legend)

    return _draw(draw, (max(7.6, min(11.0, 1.6 + 0.9 * len(groups) * 1.2)), 3.5), label)


def lines(
    series: Mapping[str, Tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    label: str,
    logx: bool = False,
    logy: bool = False,
    percent: bool = False,
    markers: bool = True,
    ticks: Optional[Mapping[float, str]] = None,
    dashed: Sequence[str] = (),
    mark: Optional[Tuple[float, float, str]] = None,
    zero: bool = True,
    near_zero: bool = False,
) -> str:
    """Curves: name → (x, y). ``mark`` is a point with a word beside it; ``near_zero`` spreads what is
    near the beginning of the x axis."""

    def draw(_figure: Any, axes: Any) -> None:
        drawn: Dict[str, Any] = {}
        for at, (name, (xs, ys)) in enumerate(series.items()):
            [drawn[name]] = axes.plot(
                xs, ys, color=COLOURS[at % len(COLOURS)],
                linestyle="--" if name in dashed or at >= len(COLOURS) else "-",
                marker="o" if markers and name not in dashed else None, markersize=4,
            )
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        if logx:
            axes.set_xscale("log", base=2)
        if near_zero:
            axes.set_xscale("symlog", base=2, linthresh=8)
            axes.xaxis.set_major_formatter("{x:.0f}")
        if logy:
            axes.set_yscale("log")
        elif zero:
            axes.set_ylim(bottom=0)
        if ticks:
            axes.set_xticks(list(ticks), [_plain(name) for name in ticks.values()])
            axes.minorticks_off()
            if sum(map(len, ticks.values())) > TICK_LETTERS:
                axes.tick_params(axis="x", labelsize=8)
        if percent:
            axes.yaxis.set_major_formatter("{x:.0%}")
        if mark:
            x, y, word = mark
            axes.plot([x], [y], "o", markersize=11, markerfacecolor="none",
                      markeredgecolor="#1d2733", markeredgewidth=1.6)
            axes.annotate(_plain(word), (x, y), xytext=(10, 14), textcoords="offset points",
                          color="#1d2733", fontweight="bold")
        _legend(axes, drawn)

    return _draw(draw, (7.6, 3.7), label)


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[Optional[float]]],
    xlabel: str,
    ylabel: str,
    label: str,
    percent: bool = True,
) -> str:
    """A map of gains (blue) and losses (red) around zero, with the numbers in the cells."""

    def draw(figure: Any, axes: Any) -> None:
        import numpy as np

        array = np.array(
            [[np.nan if value is None else value for value in row] for row in values], dtype=float
        )
        known = array[np.isfinite(array)]
        limit = float(np.abs(known).max()) if known.size else 1.0
        limit = max(limit, 1e-9)
        # Not an image: its cells stay shapes, and the page stays text.
        axes.pcolormesh(array, cmap="RdBu", vmin=-limit, vmax=limit, edgecolors="white", linewidth=1)
        axes.invert_yaxis()
        axes.set_xticks([at + 0.5 for at in range(len(columns))], [_plain(name) for name in columns])
        axes.set_yticks([at + 0.5 for at in range(len(rows))], [_plain(name) for name in rows])
        axes.grid(visible=False)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        for (row, column), value in np.ndenumerate(array):
            if np.isfinite(value):
                strong = abs(value) > 0.6 * limit
                axes.text(
                    column + 0.5, row + 0.5, f"{value * 100:+.0f}" if percent else f"{value:.3g}",
                    ha="center", va="center", fontsize=8.5, color="white" if strong else "#1d2733",
                )

    height = 1.3 + 0.34 * max(len(rows), 3)
    return _draw(draw, (max(5.2, 1.6 + 0.72 * len(columns)), height), label)


def _shades(series: Mapping[str, Any], published: Sequence[str]) -> Dict[str, str]:
    free = iter(COLOURS * (1 + len(series) // len(COLOURS)))
    return {name: PUBLISHED if name in published else next(free) for name in series}


def _short(text: str) -> str:
    """Wraps long group names to two or three lines."""
    if len(text) <= 14:
        return text
    lines: List[str] = [""]
    for word in re.split(r"[ _]|(?<=-)", text):
        if lines[-1] and len(lines[-1]) + len(word) > 14:
            lines.append("")
        lines[-1] += ("" if not lines[-1] or lines[-1].endswith("-") else " ") + word
    return "\n".join(lines)
