"""What can go wrong, each with a class of its own.

Every error of this package is a :class:`LabError`, so ``except LabError`` catches them all. Where
Python has a word for the same thing, the class is also that: a :class:`GeometryError` is a
``ValueError`` as well.
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
    """Something that the laboratory was given cannot be used; the text says what to do."""


class TraceError(LabError):
    """A trace cannot be read or used: the text names file, and line or byte."""


class GeometryError(LabError, ValueError):
    """A cache of this geometry or scheme cannot be built."""


class PlanError(LabError, ValueError):
    """A plan cannot be carried out."""


class ArgumentError(LabError, ValueError):
    """An argument has a value that means nothing here."""


class MissingError(LabError, KeyError):
    """Something is not there under the name that was looked for."""

    # A KeyError shows its key, quotes and all.
    __str__ = Exception.__str__


class InternalError(LabError, RuntimeError):
    """A fault of the laboratory itself: please report it with its text."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what was finished by then in :attr:`finished` (``None`` if nothing was)."""

    def __init__(self, finished: Optional[Any] = None) -> None:
        super().__init__("interrupted; what is finished is kept")
        self.finished = finished
