"""A self-contained HTML page of text, tables and pictures."""

from __future__ import annotations

import html
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from .words import visible

__all__ = ["Page"]

STYLE = """
:root { --ink: #1d2733; --soft: #5b6775; --line: #d9dfe6; --ground: #ffffff; --band: #f5f7f9;
  --accent: #0b5cad; --good: #1a7f37; --bad: #b42318; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .5rem; padding-top: 1.1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p, ul { max-width: 46rem; }
a { color: var(--accent); }
.lead { font-size: 1.12rem; color: var(--soft); }
.note { color: var(--soft); font-size: .92rem; }
.call { background: var(--band); border-left: 4px solid var(--accent); padding: .9rem 1.2rem;
  margin: 1.2rem 0; max-width: 46rem; }
.call p { margin: .2rem 0; }
.call .big { font-size: 1.25rem; font-weight: 600; }
nav ul { columns: 2; column-gap: 2.5rem; padding-left: 1.1rem; max-width: none; }
nav li { break-inside: avoid; }
figure { margin: 1.2rem 0; }
figure svg { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .92rem; max-width: 46rem; margin-top: .4rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .32rem .8rem .32rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; border-bottom: 2px solid var(--line); vertical-align: bottom; }
th.word, td.word { text-align: left; }
td.word { white-space: normal; max-width: 17rem; }
td.wide { min-width: 13rem; }
td.good { color: var(--good); } td.bad { color: var(--bad); }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--accent); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .92em; }
pre { background: var(--band); padding: .8rem 1rem; overflow-x: auto; font-size: .88rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 40rem) { nav ul { columns: 1; } main { padding-top: 1.2rem; }
  figure { overflow-x: auto; } figure svg { max-width: none; width: 40rem; } }
@media print { h2, h3, summary { break-after: avoid; } figure, tr { break-inside: avoid; }
  .scroll { overflow: visible; } th, td { white-space: normal; padding-right: .5rem; }
  table { font-size: .8rem; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details::details-content { display: block; content-visibility: visible; } }
"""

#: Paper cannot be unfolded; not every browser prints what is folded, whatever its style says.
UNFOLD = (
    "addEventListener('beforeprint', () => "
    "document.querySelectorAll('details').forEach(one => { one.open = true; }));"
)

#: Cells longer than this may be broken into lines.
WIDE = 44


def escape(text: Any) -> str:
    """Text escaped for HTML."""
    return html.escape(visible(str(text)), quote=True)


class Page:
    """Collects sections and gives the page as one string.

    Text is escaped; what is already HTML goes through :meth:`markup` only.
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self.lead = lead
        self._parts: List[str] = []
        self._contents: List[Tuple[str, str]] = []

    def section(self, title: str, anchor: Optional[str] = None) -> None:
        """Starts a section, listed in the table of contents."""
        anchor = anchor or "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")
        self._contents.append((anchor, title))
        self._parts.append(f'<h2 id="{escape(anchor)}">{escape(title)}</h2>')

    def heading(self, title: str) -> None:
        """A heading inside a section; before the first section, at the section's level."""
        level = "h3" if self._contents else "h2"
        self._parts.append(f"<{level}>{escape(title)}</{level}>")

    def text(self, text: str, note: bool = False) -> None:
        """A paragraph."""
        kind = ' class="note"' if note else ""
        self._parts.append(f"<p{kind}>{escape(text)}</p>")

    def points(self, texts: Sequence[str]) -> None:
        """A list."""
        items = "".join(f"<li>{escape(text)}</li>" for text in texts)
        self._parts.append(f"<ul>{items}</ul>")

    def call(self, big: str, *texts: str) -> None:
        """A highlighted summary."""
        rest = "".join(f"<p>{escape(text)}</p>" for text in texts)
        self._parts.append(f'<div class="call"><p class="big">{escape(big)}</p>{rest}</div>')

    def figure(self, svg: str, caption: str = "") -> None:
        """A picture as SVG text."""
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure>{svg}{below}</figure>")

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[Any]],
        caption: str = "",
        marks: Optional[Mapping[Tuple[int, int], str]] = None,
        folded: Optional[str] = None,
    ) -> None:
        """A table. Columns of words are set left, of numbers right; ``marks`` gives cells
        (row, column) a class, ``good`` or ``bad``; ``folded`` hides it behind that line."""
        words = [
            any(isinstance(row[at], str) and not _numeric(row[at]) for row in rows if at < len(row))
            for at in range(len(heads))
        ]
        out = ['<div class="scroll"><table>']
        if caption:
            out.append(f"<caption>{escape(caption)}</caption>")
        out.append("<thead><tr>")
        out += [
            f'<th scope="col"{_classes("word" if words[at] else "")}>{escape(head)}</th>'
            for at, head in enumerate(heads)
        ]
        out.append("</tr></thead><tbody>")
        for number, row in enumerate(rows):
            out.append("<tr>")
            for at, cell in enumerate(row):
                text = "" if cell is None else str(cell)
                classes = ["word"] if words[at] else []
                if len(text) > WIDE:
                    classes.append("wide")
                if marks and (number, at) in marks:
                    classes.append(marks[number, at])
                out.append(f"<td{_classes(*classes)}>{escape(text)}</td>")
            out.append("</tr>")
        out.append("</tbody></table></div>")
        whole = "".join(out)
        if folded:
            whole = f"<details><summary>{escape(folded)}</summary>{whole}</details>"
        self._parts.append(whole)

    def markup(self, markup: str) -> None:
        """Adds HTML."""
        self._parts.append(markup)

    def html(self, contents: bool = True, footer: str = "") -> str:
        """The page."""
        lead = f'<p class="lead">{escape(self.lead)}</p>' if self.lead else ""
        nav = ""
        if contents and len(self._contents) > 2:
            items = "".join(
                f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'
                for anchor, title in self._contents
            )
            nav = f"<nav><ul>{items}</ul></nav>"
        below = f"<footer>{escape(footer)}</footer>" if footer else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>\n"
            f"<body><main><h1>{escape(self.title)}</h1>{lead}{nav}\n"
            + "\n".join(self._parts)
            + f"\n{below}</main><script>{UNFOLD}</script></body></html>\n"
        )


def _numeric(text: str) -> bool:
    return all(letter in "0123456789.,+-−–—%×± \u00a0()ex" for letter in text)


def _classes(*names: str) -> str:
    named = " ".join(name for name in names if name)
    return f' class="{named}"' if named else ""
