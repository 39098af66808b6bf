"""What was given, checked before it reaches the core: numbers, for which that has room, and names of
files."""

from __future__ import annotations

import os
from typing import Any

from .errors import ArgumentError

__all__ = ["SEED_MAX", "THREADS_MAX", "path_of", "whole"]

THREADS_MAX = 1024
SEED_MAX = (1 << 64) - 1


def whole(value: int, what: str, most: int = THREADS_MAX) -> int:
    """``value``, if it is a whole number from 0 to ``most``; ``what`` names it in the error."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= most:
        raise ArgumentError(f"{what} {value!r}: write a whole number from 0 to {most}")
    return value.__index__()


def path_of(given: Any, what: str = "path") -> str:
    """The name of a file or folder, if ``given`` is one; ``what`` names it in the error."""
    name = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(name, str):
        raise ArgumentError(f"{what} {given!r}: write a file's name, as text or as a pathlib.Path")
    return name
