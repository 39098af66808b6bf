"""Tables of results: named columns of equal length, directly usable in pandas, polars and Arrow."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Union

import numpy as np

from .errors import ArgumentError, MissingError
from .given import path_of
from .words import visible

__all__ = ["Frame"]

#: More rows than this are cut when a frame is shown.
SHOWN = 40


class Frame:
    """Named columns, each a numpy array or a list.

    ``frame["misses"]`` is a column; ``frame.to_pandas()``, ``frame.to_polars()`` and
    ``frame.to_arrow()`` convert it. It also implements Arrow's PyCapsule interface, so that
    ``polars.DataFrame(frame)`` or ``pyarrow.table(frame)`` work without a copy.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns: Dict[str, Any] = {
            name: values if isinstance(values, np.ndarray) else list(values)
            for name, values in columns.items()
        }
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise ArgumentError(f"columns of different lengths: {lengths}")

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Frame:
        """Builds a frame from rows; missing values become ``None``."""
        names: Dict[str, None] = {}
        for row in rows:
            names.update(dict.fromkeys(row))
        return cls({name: [row.get(name) for row in rows] for name in names})

    @property
    def columns(self) -> List[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise MissingError(f"no column {name!r}; there are {known}") from None

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def rows(self) -> Iterator[Dict[str, Any]]:
        """Row by row, as dictionaries of plain Python values."""
        columns = [
            values.tolist() if isinstance(values, np.ndarray) else values
            for values in self._columns.values()
        ]
        for row in zip(*columns):
            yield dict(zip(self._columns, row))

    def to_dict(self) -> Dict[str, Any]:
        """The columns by name."""
        return dict(self._columns)

    def to_arrow(self) -> Any:
        """As a ``pyarrow.Table``."""
        import pyarrow

        return pyarrow.table({name: _column(values) for name, values in self._columns.items()})

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self._columns)

    def to_polars(self) -> Any:
        """As a ``polars.DataFrame``."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_parquet(self, path: Union[str, Path]) -> None:
        """Writes a Parquet file atomically."""
        from .files import write_parquet

        write_parquet(self.to_arrow(), Path(path_of(path)))

    def to_csv(self, path: Union[str, Path]) -> None:
        """Writes a CSV file atomically."""
        from .files import write_csv

        write_csv(self.to_arrow(), Path(path_of(path)))

    def __repr__(self) -> str:
        names = self.columns
        shown = [[_text(row[name]) for name in names] for row, _ in zip(self.rows(), range(SHOWN))]
        widths = [
            max(len(name), *(len(row[at]) for row in shown)) if shown else len(name)
            for at, name in enumerate(names)
        ]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip()
            for row in [names, *shown]
        ]
        if len(self) > SHOWN:
            lines.append(f"… {len(self):,} rows")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(v))}</td>" for v in row.values()) + "</tr>"
            for row, _ in zip(self.rows(), range(SHOWN))
        )
        more = f"<caption>{len(self):,} rows</caption>" if len(self) > SHOWN else ""
        return f"<table>{more}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _column(values: Any) -> Any:
    """As Arrow takes it; seeds may have 64 bits, and no sign."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except OverflowError:
        return pyarrow.array(values, pyarrow.uint64())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return visible(str(value))
