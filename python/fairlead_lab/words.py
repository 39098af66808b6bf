"""Formatting of numbers."""

from __future__ import annotations

import re
from typing import Any, Optional

__all__ = ["bits", "number", "percent", "points", "size", "visible"]

#: What a terminal obeys and a page cannot have, but for the ends of lines and tabs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Text with control characters replaced by their escapes."""
    return CONTROL.sub(lambda found: f"\\u{{{ord(found.group()):x}}}", text)


def size(capacity_bytes: int) -> str:
    """``32768`` as ``32 KiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if capacity_bytes >= unit and capacity_bytes % unit == 0:
            return f"{capacity_bytes // unit:,}\u00a0{name}"
    return f"{capacity_bytes:,} bytes"


def bits(count: int) -> str:
    """Bits, as bytes in a suitable unit."""
    kibibytes = count / 8192
    return f"{kibibytes:,.1f}\u00a0KiB" if kibibytes < 10_000 else f"{kibibytes / 1024:,.1f}\u00a0MiB"


def percent(share: Optional[float], places: int = 1) -> str:
    """``0.2604`` as ``26.0 %`` without a line break; ``None`` as a dash."""
    return "–" if share is None else f"{share * 100:.{places}f}\u00a0%"


def points(difference: Optional[float]) -> str:
    """A difference of shares in percentage points, with its sign."""
    if difference is None:
        return "–"
    shown = f"{difference * 100:+.1f}"
    # A value rounded to zero has no sign.
    return "0.0" if float(shown) == 0 else shown


def number(value: Any) -> str:
    """With thousands separators; ``None`` as a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
