"""Validation of arguments before they reach the core: numbers in range, names, and functions."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional

import numpy as np

from .errors import ArgumentError, MissingError

__all__ = [
    "SEED_MAX", "THREADS_MAX", "each_of", "path_of", "share", "teller", "text_of", "told_of", "whole",
    "yes_or_no",
]

THREADS_MAX = 1024
SEED_MAX = (1 << 64) - 1


def whole(value: int, what: str, most: int = THREADS_MAX) -> int:
    """Returns ``value`` if it is a whole number from 0 to ``most``; ``what`` names it in the
    error."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= most:
        raise ArgumentError(f"{what} {value!r}: write a whole number from 0 to {most}")
    return value.__index__()


def path_of(given: Any, what: str = "path") -> str:
    """Returns ``given`` as the name of a file or directory; ``what`` names it in the error."""
    name = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(name, str) or not name or "\0" in name:
        raise ArgumentError(f"{what} {given!r}: write a file's name, as text or as a pathlib.Path")
    return name


def each_of(given: Any, what: str) -> List[Any]:
    """Returns a list of values; a single value becomes a list of one."""
    if isinstance(given, (str, bytes, os.PathLike)) or hasattr(given, "__index__"):
        return [given]
    if not hasattr(given, "__iter__"):
        raise ArgumentError(f"{what} {given!r}: write one, or a list of them")
    return list(given)


def text_of(given: Any, what: str) -> str:
    """Returns ``given`` if it is text; ``what`` names it in the error."""
    if not isinstance(given, str):
        raise ArgumentError(f"{what} {given!r}: write text, in quotation marks")
    return given


def share(given: Any, what: str) -> float:
    """Returns ``given`` if it is a share; ``what`` names it in the error."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(given, str) or not 0 <= number <= 1:
        said = f"{given:g}" if isinstance(given, float) else repr(given)
        raise ArgumentError(f"{what} {said}: write a share from 0 to 1, as 0.01")
    return number


@contextmanager
def told_of(what: str, maker: str) -> Iterator[None]:
    """Reads a page's input as returned by ``maker``; errors name missing parts."""
    try:
        yield
    except KeyError as error:
        problem = f"{what}: there is no {error.args[0]!r} in it; give what {maker} gives, whole"
        raise MissingError(problem) from error
    except (AttributeError, TypeError) as error:
        raise ArgumentError(f"{what}: give what {maker} gives ({error})") from error


def yes_or_no(given: Any, what: str) -> bool:
    """Returns ``given`` if it is a boolean; ``what`` names it in the error."""
    if not isinstance(given, (bool, np.bool_)):
        raise ArgumentError(f"{what} {given!r}: write True or False")
    return bool(given)


def teller(given: Any, otherwise: Optional[Callable[[int, int], None]]) -> Any:
    """Returns the progress callback if it is a function, or ``otherwise`` if none is given."""
    if given is not None and not callable(given):
        raise ArgumentError(f"progress {given!r}: write a function of two numbers, done and total")
    return otherwise if given is None else given
