"""Atomic file writes: a file is complete or absent, even if the process is killed."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from .errors import LabError

__all__ = ["make_folder", "write_csv", "write_parquet", "write_text"]


def write_whole(path: Path, write: Callable[[str], None]) -> None:
    """Writes to a temporary file beside ``path`` and renames it. For a symbolic link the target is
    written; devices and pipes are written directly."""
    if _is_stream(path):
        with _told(path):
            write(str(path))
        return
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    make_folder(path.parent)
    with _told(path):
        # A name that readers do not take for a finished file.
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        try:
            write(beside)
            # Made readable as any other new file would be; mkstemp is stricter.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(beside, 0o666 & ~mask)
            os.replace(beside, path)
        except BaseException:
            if os.path.exists(beside):
                os.unlink(beside)
            raise


def _is_stream(path: Path) -> bool:
    """True if the path cannot be replaced by renaming: devices, pipes, and files that the process
    has open (``/dev/stdout``)."""
    above = [str(folder) for folder in path.absolute().parents]
    if "/proc" in above or "/dev" in above and "/dev/shm" not in above:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def make_folder(folder: Path) -> None:
    """Creates a directory and its parents if needed, and checks that it is writable."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Converts a system error about a file to an error of this package that names it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise LabError(f"{path}: cannot be written: {why}; choose another place") from error


def write_parquet(table: Any, path: Path) -> None:
    """A ``pyarrow.Table`` as Parquet."""
    import pyarrow.parquet

    def write(to: str) -> None:
        # Given a name, Arrow would remove the file on failure, even a device or a pipe.
        with open(to, "wb") as file:
            pyarrow.parquet.write_table(table, file)

    write_whole(path, write)


def write_csv(table: Any, path: Path) -> None:
    """A ``pyarrow.Table`` as CSV; nested values become JSON."""
    import json

    import pyarrow
    import pyarrow.csv

    for at, field in enumerate(table.schema):
        if pyarrow.types.is_nested(field.type):
            texts = [json.dumps(value) for value in table.column(at).to_pylist()]
            table = table.set_column(at, field.name, pyarrow.array(texts, pyarrow.string()))

    def write(to: str) -> None:
        with open(to, "wb") as file:
            pyarrow.csv.write_csv(table, file)

    write_whole(path, write)


def write_text(text: str, path: Path) -> None:
    """Text, in UTF-8."""

    def write(to: str) -> None:
        with open(to, "w", encoding="utf-8") as file:
            file.write(text)

    write_whole(path, write)
