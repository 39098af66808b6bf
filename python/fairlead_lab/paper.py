"""Reproduces the paper on available traces: every figure and table, with the published value
beside ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _core, plots
from .errors import Interrupted, LabError
from .files import make_folder, write_csv, write_parquet, write_text
from .frame import Frame
from .given import SEED_MAX, each_of, path_of, share, teller, told_of, whole, yes_or_no
from .page import Page
from .words import number, percent, points

__all__ = ["paper", "paper_page", "write_paper"]

PathLike = Union[str, "os.PathLike[str]"]
Tell = Optional[Callable[[int, int], None]]

#: More points than this on an axis are a curve.
CURVE = 8


def paper(
    traces: Union[PathLike, Sequence[PathLike]] = (),
    seed: int = 1,
    threads: int = 0,
    quick: bool = False,
    progress: Tell = None,
    max_bad: float = 0.01,
) -> Dict[str, Any]:
    """Runs every figure and table of the paper over ``traces`` (files, or folders of them) and
    over synthetic substitutes, labelled as such; returns all values as one dictionary.

    Only the concurrency is fitted, and on the Mod column alone; every other value is a prediction.
    Traces that cannot be run, as one with more unreadable rows than ``max_bad``, are in ``failed``
    with the reason; an error is raised when none can be.
    Ctrl-C raises :class:`Interrupted`, with the traces that were finished.
    """
    names = [path_of(trace, "traces") for trace in each_of(traces, "traces")]
    seed, threads = whole(seed, "seed", SEED_MAX), whole(threads, "threads")
    try:
        report: Dict[str, Any] = json.loads(
            _core.paper(
                names, seed, threads, yes_or_no(quick, "quick"), teller(progress, None),
                share(max_bad, "max_bad"),
            )
        )
        return report
    except Interrupted as stop:
        if stop.finished is not None:
            stop.finished = json.loads(stop.finished)
        raise


def write_paper(
    traces: Union[PathLike, Sequence[PathLike]],
    out: PathLike,
    seed: int = 1,
    threads: int = 0,
    quick: bool = False,
    progress: Tell = None,
    max_bad: float = 0.01,
) -> Path:
    """Writes the report into the folder ``out``: ``paper.html``, which stands alone, and the tables
    as Parquet and CSV. Gives the page's path.

    After Ctrl-C the tables of what was finished are written, and :class:`Interrupted` raised again.
    """
    folder = Path(path_of(out, "out"))
    make_folder(folder)
    try:
        report = paper(traces, seed, threads, quick, progress, max_bad)
    except Interrupted as stop:
        if stop.finished and stop.finished["traces"]:
            # After an interrupt, do not spend time on plots.
            write_numbers(stop.finished, folder)
        raise
    write_numbers(report, folder)
    page = folder / "paper.html"
    write_text(paper_page(report), page)
    return page


def write_numbers(report: Mapping[str, Any], folder: Path) -> None:
    """The report as JSON, and its tables."""
    write_text(json.dumps(report, indent=1), folder / "paper.json")
    write_tables(report, folder / "tables")


def write_tables(report: Mapping[str, Any], folder: Path) -> None:
    """Writes a Parquet and a CSV file for each figure, and for traces and claims."""
    for figure in report["figures"]:
        table = _table(figure["rows"])
        write_parquet(table, folder / f"{figure['id']}.parquet")
        write_csv(table, folder / f"{figure['id']}.csv")
    traces = Frame.of_rows([_trace_row(trace) for trace in report["traces"]])
    claims = Frame.of_rows(
        [{"figure": figure["id"], **claim} for figure in report["figures"] for claim in figure["claims"]]
    )
    for name, frame in (("traces", traces), ("claims", claims)):
        if len(frame):
            frame.to_parquet(folder / f"{name}.parquet")
            frame.to_csv(folder / f"{name}.csv")


#: What is in a figure's table. Those of several figures can be put together, whichever has nothing
#: published.
COLUMNS = {
    "trace": "string", "synthetic": "bool", "series": "string", "x": "string", "ours": "double",
    "spread": "double", "published": "double", "error": "double", "fitted": "bool",
}


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    import pyarrow

    kinds = {name: pyarrow.type_for_alias(kind) for name, kind in COLUMNS.items()}
    columns = {
        name: pyarrow.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()
    }
    return pyarrow.table(columns)


def _trace_row(trace: Mapping[str, Any]) -> Dict[str, Any]:
    given, stream = trace["given"], trace["stream"]
    return {
        "trace": given["name"],
        "what": given["what"],
        "paper_trace": given["paper_trace"],
        "synthetic": given["synthetic"],
        "fitted_to_mod": given["fitted_to"],
        "open_sessions": trace["sessions"],
        "mod_miss_ratio": trace["mod_miss_ratio"],
        "accesses": stream["accesses"],
        "warm_up": stream["warm_up"],
        "sessions": stream["sessions"],
        "span_s": stream["span_s"],
        "stream": stream["stream"],
        "made": json.dumps(stream["made"]),
    }


def paper_page(report: Mapping[str, Any]) -> str:
    """The report as one page of HTML."""
    with told_of("report", "paper"):
        return _page(report)


def _page(report: Mapping[str, Any]) -> str:
    page = Page(
        "A TCB cache for web servers, again",
        "Every figure and table of “A New TCB Cache to Efficiently Manage TCP Sessions for Web Servers” "
        "(ANCS 2010) on the traces at hand: the published value, ours, and the error.",
    )
    _summary(page, report)
    _traces(page, report)
    for figure in report["figures"]:
        _figure(page, figure)
    _claims(page, report)
    seeds = [str(seed) for seed in report["asked"]["seeds"]]
    said = "; ± is half of largest less smallest over these" if len(seeds) > 1 else ""
    return page.html(footer=f"fairlead-lab {report['version']}; seeds {', '.join(seeds)}{said}.")


def _summary(page: Page, report: Mapping[str, Any]) -> None:
    predicted = [
        {**row, "unit": figure["unit"], "id": figure["id"].replace("-", " ")}
        for figure in report["figures"]
        for row in figure["rows"]
        if row.get("published") is not None and not row["fitted"] and not row["synthetic"] and row["trace"]
    ]
    claims = [claim for figure in report["figures"] for claim in figure["claims"]]
    judged = [claim for claim in claims if claim["holds"] is not None]
    held = sum(claim["holds"] for claim in judged)
    texts = [
        f"{len(report['traces'])} traces, {len(report['figures'])} figures and tables. Only the number "
        "of open sessions is fitted, per trace, and on the Mod column alone; all else is predicted."
    ]
    if predicted:
        worst = max(predicted, key=lambda row: abs(row["error"]))
        texts.append(
            f"{len(predicted)} published values could be predicted on real traces; the largest error is "
            f"{_difference(worst['error'], worst['unit'])}"
            f"{' percentage points' if _is_share(worst['unit']) else ''} ({worst['x']} on {worst['trace']}, "
            f"{worst['id']})."
        )
    if report["stopped"]:
        texts.append("It was interrupted: traces after the last one are missing.")
    unsaid = len(claims) - len(judged)
    if unsaid:
        texts.append(f"Of {unsaid} more it cannot be said whether they do.")
    page.call(f"{held} of {len(judged)} comparisons with the paper’s text hold here.", *texts)
    if report["failed"]:
        page.heading("Could not be run")
        page.text("Nothing of these traces is in the figures.")
        page.points([f"{failure['trace']}: {failure['problem']}" for failure in report["failed"]])
    if report["absent"]:
        page.heading("Not at hand")
        page.text(
            "These traces of the paper were not there, and nothing stands for them under their name. "
            "With the archive’s files in a folder, “fairlead-lab paper FOLDER” uses them."
        )
        page.points(report["absent"])


def _traces(page: Page, report: Mapping[str, Any]) -> None:
    page.section("The traces")
    heads = ["trace", "what it is", "open sessions", "fitted to", "TCB(Mod)", "accesses", "of warm-up"]
    rows = []
    for trace in report["traces"]:
        given, stream = trace["given"], trace["stream"]
        rows.append(
            [
                given["name"],
                given["what"],
                number(trace["sessions"]),
                "not fitted" if given["fitted_to"] is None else percent(given["fitted_to"], 0),
                percent(trace["mod_miss_ratio"]),
                number(stream["accesses"]),
                number(stream["warm_up"]),
            ]
        )
    page.table(heads, rows)
    for trace in report["traces"]:
        notes = trace["stream"].get("notes", [])
        if notes:
            page.text(f"{trace['given']['name']}: " + "; ".join(notes) + ".", note=True)
        made = json.dumps(trace["stream"]["made"], indent=1)
        page.markup(
            f"<details><summary>How {_escaped(trace['given']['name'])} became accesses</summary>"
            f"<pre>{_escaped(made)}</pre></details>"
        )


def _escaped(text: str) -> str:
    from .page import escape

    return escape(text)


def _figure(page: Page, figure: Mapping[str, Any]) -> None:
    name = "Figures 18 and 19" if figure["id"] == "figure-18-19" else (
        figure["id"].replace("-", " ").capitalize()
    )
    page.section(f"{name}: {figure['title']}", figure["id"])
    if not figure["rows"]:
        page.text("There is nothing to show on the traces at hand.")
    else:
        for svg, caption in pictures(figure):
            page.figure(svg, caption)
    for note in figure["notes"]:
        page.text(note, note=True)
    _claim_table(page, figure["claims"])
    if figure["rows"]:
        _values(page, figure)
    if figure["plan"].strip():
        page.markup(
            "<details><summary>The plan that was run</summary><pre>"
            f"{_escaped(figure['plan'].strip())}</pre></details>"
        )


def _claim_table(page: Page, claims: Sequence[Mapping[str, Any]]) -> None:
    if not claims:
        return
    marks = {
        (at, 3): "good" if claim["holds"] else "bad"
        for at, claim in enumerate(claims)
        if claim["holds"] is not None
    }
    verdicts = {True: "holds", False: "does not hold", None: "cannot be said"}
    rows = [
        [claim["says"], claim["trace"], claim["ours"], verdicts[claim["holds"]]] for claim in claims
    ]
    page.table(["the paper says", "trace", "here", "verdict"], rows, marks=marks)


def _values(page: Page, figure: Mapping[str, Any]) -> None:
    unit = figure["unit"]
    published = any(row.get("published") is not None for row in figure["rows"])
    spread = any(row.get("spread") is not None for row in figure["rows"])
    heads = ["trace", "series", figure["x"] or "at", "ours"]
    heads += ["±"] if spread else []
    in_points = " (points)" if _is_share(unit) else ""
    heads += ["published", "error" + in_points, "fitted"] if published else []
    rows = []
    for row in figure["rows"]:
        cells = [row["trace"], row["series"], row["x"], _value(row["ours"], unit)]
        cells += [_value(row.get("spread"), unit)] if spread else []
        if published:
            cells += [
                _value(row.get("published"), unit),
                _difference(row.get("error"), unit),
                "fitted" if row["fitted"] else "–",
            ]
        rows.append(cells)
    few = len(rows) <= 24 and published
    page.table(heads, rows, folded=None if few else f"All {len(rows)} values")


def _is_share(unit: str) -> bool:
    return unit in ("miss ratio", "share of gaps", "share of sets")


def _value(value: Optional[float], unit: str) -> str:
    if value is None:
        return "–"
    if _is_share(unit):
        return percent(value)
    return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _difference(value: Optional[float], unit: str) -> str:
    """A difference of shares, in percentage points to avoid confusion with a share."""
    if value is None:
        return "–"
    if _is_share(unit):
        return points(value)
    return f"{value:+,.3f}" if abs(value) < 100 else f"{value:+,.0f}"


#: Series that stand in the table only, because another one says the same in the figure.
UNDRAWN = {"miss ratio": "relative"}
#: Figures with a plot for each trace, in which every series is a curve.
BY_TRACE = ("figure-5",)
#: Figures whose axis has bins: equally wide, as in the paper.
BINNED = ("figure-3a", "figure-3b")
#: Figures of which most of what there is to see is near zero.
NEAR_ZERO = ("figure-5",)


def pictures(figure: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """The figure's plots, with captions."""
    rows = figure["rows"]
    series = list(dict.fromkeys(row["series"] for row in rows))
    series = [name for name in series if UNDRAWN.get(name) not in series]
    if figure["id"] in BY_TRACE:
        found = []
        for trace in dict.fromkeys(row["trace"] for row in rows):
            part = [row for row in rows if row["trace"] == trace]
            found.append((_curves(figure, part, lambda row: row["series"]), f"{trace}."))
        return found
    if any(row.get("published") is not None for row in rows):
        return _beside_published(figure)
    found = []
    for name in series:
        part = [row for row in rows if row["series"] == name]
        caption = f"{name[:1].upper()}{name[1:]}." if len(series) > 1 else ""
        points = len({row["x"] for row in part})
        ordered = figure["id"] in BINNED or all(_number(row["x"]) is not None for row in part)
        if points > CURVE and ordered:
            svg = _curves(figure, part, lambda row: row["trace"])
        else:
            svg = _bars(figure, part)
        found.append((svg, caption))
    return found


def _curves(
    figure: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    name: Callable[[Mapping[str, Any]], str],
) -> str:
    bins = list(dict.fromkeys(row["x"] for row in rows))
    curves: Dict[str, Tuple[List[float], List[float]]] = {}
    for row in rows:
        xs, ys = curves.setdefault(_short(name(row)), ([], []))
        xs.append(bins.index(row["x"]) if figure["id"] in BINNED else _number(row["x"]) or 0.0)
        ys.append(row["ours"])
    numbers = [x for xs, _ in curves.values() for x in xs]
    return plots.lines(
        curves,
        figure["x"],
        figure["unit"],
        f"{figure['id']} {figure['title']} {rows[0]['trace']}",
        percent=_is_share(figure["unit"]),
        markers=len(numbers) <= 40 * len(curves),
        logx=_wide(numbers),
        zero=figure["id"] != "section-4.1",
        ticks=dict(enumerate(bins)) if figure["id"] in BINNED else None,
        near_zero=figure["id"] in NEAR_ZERO,
    )


def _short(name: str) -> str:
    """Names of generated traces are long; what they are is in the table of traces."""
    return name.replace("fitted to a TCB(Mod) of", "Mod").replace(" %", "\u00a0%")


def _bars(figure: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    places = list(dict.fromkeys(row["x"] for row in rows))
    values = {(row["trace"], row["x"]): row["ours"] for row in rows}
    # Groups of many bars are hard to read: what is fewer are the bars of a group.
    if len(places) > len(traces) or len(places) > 6:
        groups = places
        series = {_short(trace): [values.get((trace, x)) for x in places] for trace in traces}
    else:
        groups = [_short(trace) for trace in traces]
        series = {x: [values.get((trace, x)) for trace in traces] for x in places}
    # A value of one is what ratios are held against.
    base = 1.0 if "/" in figure["unit"] else None
    title = f"{figure['id']} {figure['title']} {rows[0]['series']}"
    named = "xlabel" if groups is places else "legend"
    return plots.bars(
        groups, series, figure["unit"], title, percent=_is_share(figure["unit"]), base=base,
        **{named: figure["x"]},
    )


def _beside_published(figure: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """A plot for each trace that the paper has values of, then one of all the others."""
    found = []
    rest = []
    for trace in dict.fromkeys(row["trace"] for row in figure["rows"]):
        rows = [row for row in figure["rows"] if row["trace"] == trace]
        if all(row.get("published") is None for row in rows):
            rest += rows
            continue
        by_series = _side_by_side(rows)
        if by_series:
            places = list(dict.fromkeys(row["x"] for row in rows))
            svg = plots.bars(
                places, by_series, figure["unit"], f"{figure['id']} {trace}",
                percent=_is_share(figure["unit"]), published=["published"], xlabel=figure["x"],
            )
            found.append((svg, f"{trace}."))
            continue
        several = len({row["series"] for row in rows if row.get("published") is not None}) > 1
        groups = [f"{row['series']}, {row['x']}" if several else row["x"] for row in rows]
        values = {
            "published": [row.get("published") for row in rows],
            "ours": [row["ours"] for row in rows],
        }
        svg = plots.bars(
            groups, values, figure["unit"], f"{figure['id']} {trace}", percent=_is_share(figure["unit"]),
            published=["published"], xlabel=figure["x"],
        )
        fitted = [row["x"] for row in rows if row["fitted"]]
        words = [f"{trace}."] if trace else []
        if fitted:
            words.append(f"{', '.join(fitted)} is fitted, the others with a published value are predictions.")
        found.append((svg, " ".join(words)))
    if rest:
        found.append((_bars(figure, rest), "Traces that are not the paper’s." if found else ""))
    return found


def _side_by_side(rows: Sequence[Mapping[str, Any]]) -> Dict[str, List[Optional[float]]]:
    """Several series over the same places and against the same published values, as bars beside
    them; nothing when the rows are not of that kind."""
    places = list(dict.fromkeys(row["x"] for row in rows))
    published: Dict[str, Optional[float]] = {}
    values: Dict[str, Dict[str, float]] = {}
    for row in rows:
        if published.setdefault(row["x"], row.get("published")) != row.get("published"):
            return {}
        values.setdefault(row["series"], {})[row["x"]] = row["ours"]
    if len(values) < 2 or any(len(ours) != len(places) for ours in values.values()):
        return {}
    series: Dict[str, List[Optional[float]]] = {"published": [published[x] for x in places]}
    for name, ours in values.items():
        series[name] = [ours[x] for x in places]
    return series


def _number(text: str) -> Optional[float]:
    try:
        return float(text.replace(",", "").lstrip("<>≤≥ "))
    except ValueError:
        return None


def _wide(numbers: Sequence[float]) -> bool:
    known = [value for value in numbers if value > 0]
    return bool(known) and len(known) == len(numbers) and max(known) > 64 * min(known)


def _claims(page: Page, report: Mapping[str, Any]) -> None:
    failed = [
        (figure, claim)
        for figure in report["figures"]
        for claim in figure["claims"]
        if claim["holds"] is False
    ]
    if not failed:
        return
    page.section("What does not hold here")
    rows = [
        [figure["id"].replace("-", " "), claim["says"], claim["trace"], claim["ours"]]
        for figure, claim in failed
    ]
    page.table(["figure", "the paper says", "trace", "here"], rows)
