"""Results of a sweep on disk: a directory of Parquet files, from which a killed sweep resumes.

Each batch of finished runs becomes one file below ``runs/``, in one step, so a kill leaves only
complete files. Each row has the key of its run; existing keys are not computed again.
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
    """The directory. Two sweeps of the same plan may write to it at once, because they write the
    same."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self.folder = Path(folder)
        self.runs = self.folder / "runs"
        # Rows by key, and their files. Files never change under their name, so each is read only
        # once: after Ctrl-C there is no time to read again.
        self._known: Dict[str, Dict[str, Any]] = {}
        self._read: Set[Path] = set()

    def prepare(self) -> None:
        """Creates the directory, before anything is computed."""
        make_folder(self.runs)

    def finished(self) -> Set[str]:
        """Keys of existing runs."""
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
        """Adds finished runs. Adding the same runs again replaces them."""
        if not rows:
            return
        keys = sorted(str(row["key"]) for row in rows)
        name = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24]
        # Not every run has every column: which bounds there are depends on the scheme.
        path = self.runs / f"{name}.parquet"
        write_parquet(Frame.of_rows(rows).to_arrow(), path)
        self._take(path, rows)

    def rows(self, keys: Iterable[str]) -> List[Dict[str, Any]]:
        """The rows of these keys, in order; missing ones are omitted."""
        self.finished()
        return [self._known[key] for key in keys if key in self._known]

    def write_results(self, results: Frame) -> None:
        """Writes all of them as one table, ``results.parquet`` and ``results.csv``."""
        table = results.to_arrow()
        write_parquet(table, self.folder / "results.parquet")
        write_csv(table, self.folder / "results.csv")
