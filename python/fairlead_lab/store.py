"""Results of a sweep on disk: a folder of Parquet files that a killed sweep is taken up from.

Each batch of finished runs becomes one file below ``runs/``, in one step, so a kill leaves whole
files only. Each row carries the key of its run; a key that is there is not computed again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Union

from .errors import LabError
from .files import make_folder, write_parquet
from .frame import Frame

__all__ = ["Store"]


class Store:
    """The folder. Two sweeps of the same plan may write to it at once: they write the same."""

    def __init__(self, folder: Union[str, Path]) -> None:
        self.folder = Path(folder)
        self.runs = self.folder / "runs"

    def prepare(self) -> None:
        """Makes the folder: where that cannot be, nothing should be computed first."""
        make_folder(self.runs)

    def _files(self) -> List[Path]:
        return sorted(self.runs.glob("*.parquet"))

    def finished(self) -> Set[str]:
        """Keys of the runs that are there."""
        import pyarrow.parquet

        keys: Set[str] = set()
        for path in self._files():
            try:
                keys.update(pyarrow.parquet.read_table(path, columns=["key"])["key"].to_pylist())
            except Exception as error:
                raise LabError(f"{path}: {error}; delete the file, it is computed again") from error
        return keys

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds finished runs. The same runs again replace themselves."""
        if not rows:
            return
        keys = sorted(str(row["key"]) for row in rows)
        name = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24]
        # Not every run has every column: which bounds there are depends on the scheme.
        write_parquet(Frame.of_rows(rows).to_arrow(), self.runs / f"{name}.parquet")

    def rows(self, keys: Iterable[str]) -> List[Dict[str, Any]]:
        """The rows of these keys, in their order; those that are not there are left out."""
        import pyarrow.parquet

        found: Dict[str, Dict[str, Any]] = {}
        for path in self._files():
            for row in pyarrow.parquet.read_table(path).to_pylist():
                found[row["key"]] = row
        return [found[key] for key in keys if key in found]
