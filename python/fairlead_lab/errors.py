"""Error classes.

Every error of this package is a :class:`LabError`, so ``except LabError`` catches them all. Where
Python has a corresponding class, they also derive from it: a :class:`GeometryError` is a
``ValueError``, too.
"""

from __future__ import annotations

from typing import Any, Optional

__all__ = [
    "ArgumentError",
    "GeometryError",
    "InternalError",
    "Interrupted",
    "LabError",
    "MissingError",
    "PlanError",
    "TraceError",
]


class LabError(Exception):
    """Invalid input to the laboratory; the text says what to do."""


class TraceError(LabError):
    """An unreadable or unusable trace; the text names file, and line or byte."""


class GeometryError(LabError, ValueError):
    """An impossible cache geometry or scheme."""


class PlanError(LabError, ValueError):
    """An invalid plan."""


class ArgumentError(LabError, ValueError):
    """An invalid argument."""


class MissingError(LabError, KeyError):
    """No entry with the requested name."""

    # A KeyError shows its key, quotes and all.
    __str__ = Exception.__str__


class InternalError(LabError, RuntimeError):
    """A bug in the laboratory: please report it with its text."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. The results finished by then are in :attr:`finished` (``None`` if there are none)."""

    def __init__(self, finished: Optional[Any] = None) -> None:
        super().__init__("interrupted; what is finished is kept")
        self.finished = finished
