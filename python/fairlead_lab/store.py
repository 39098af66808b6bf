"""Results of a sweep on disk: a folder of Parquet files that a killed sweep is taken up from.

Each batch of finished runs becomes one file below ``runs/``, in one step, so a kill leaves whole
files only. Each row carries the key of its run; a key that is there is not computed again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Union

from .errors import LabError
from .files import make_folder, write_csv, write_parquet
from .frame import Frame

__all__ = ["Store"]


class Store:
    """The folder. Two sweeps of the same plan may write to it at once: they write the same."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self.folder = Path(folder)
        self.runs = self.folder / "runs"
        # Rows by key, and the files they are of. No file changes under its name, so none is read
        # twice: after Ctrl-C there is no time for it.
        self._known: Dict[str, Dict[str, Any]] = {}
        self._read: Set[Path] = set()

    def prepare(self) -> None:
        """Makes the folder: where that cannot be, nothing should be computed first."""
        make_folder(self.runs)

    def finished(self) -> Set[str]:
        """Keys of the runs that are there."""
        import pyarrow.parquet

        for path in sorted(set(self.runs.glob("*.parquet")) - self._read):
            try:
                rows = pyarrow.parquet.read_table(path).to_pylist()
                self._take(path, rows)
            except Exception as error:
                raise LabError(f"{path}: {error}; delete the file, it is computed again") from error
        return set(self._known)

    def _take(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        self._known.update((str(row["key"]), dict(row)) for row in rows)
        self._read.add(path)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds finished runs. The same runs again replace themselves."""
        if not rows:
            return
        keys = sorted(str(row["key"]) for row in rows)
        name = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24]
        # Not every run has every column: which bounds there are depends on the scheme.
        path = self.runs / f"{name}.parquet"
        write_parquet(Frame.of_rows(rows).to_arrow(), path)
        self._take(path, rows)

    def rows(self, keys: Iterable[str]) -> List[Dict[str, Any]]:
        """The rows of these keys, in their order; those that are not there are left out."""
        self.finished()
        return [self._known[key] for key in keys if key in self._known]

    def write_results(self, results: Frame) -> None:
        """Writes all of them as one table, ``results.parquet`` and ``results.csv``."""
        table = results.to_arrow()
        write_parquet(table, self.folder / "results.parquet")
        write_csv(table, self.folder / "results.csv")
