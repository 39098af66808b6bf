"""Numbers that were given, checked before they reach the core, which has room for so much."""

from __future__ import annotations

from .errors import ArgumentError

__all__ = ["SEED_MAX", "THREADS_MAX", "whole"]

THREADS_MAX = 1024
SEED_MAX = (1 << 64) - 1


def whole(value: int, what: str, most: int = THREADS_MAX) -> int:
    """``value``, if it is a whole number from 0 to ``most``; ``what`` names it in the error."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= most:
        raise ArgumentError(f"{what} {value!r}: write a whole number from 0 to {most}")
    return value.__index__()
