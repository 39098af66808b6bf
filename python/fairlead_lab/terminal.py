"""Progress display: one line on stderr, only if stderr is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Optional, TextIO, Type

from .words import visible

__all__ = ["Progress"]

#: Redrawing more often than this helps nobody.
REDRAW_S = 0.1


class Progress:
    """A line such as ``sweep  [#####.....]  42 %  12 s``, drawn over itself.

    Call it with ``(done, total)``. It is silent when ``stream`` is not a terminal, so that logs and
    pipes stay clean.
    """

    def __init__(
        self, what: str, stream: Optional[TextIO] = None, quiet: bool = False
    ) -> None:
        self.what = what
        self.stream = sys.stderr if stream is None else stream
        self.shown = not quiet and bool(getattr(self.stream, "isatty", lambda: False)())
        self.begun = time.monotonic()
        self.drawn = 0.0
        self.width = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.shown or now - self.drawn < REDRAW_S:
            return
        self.drawn = now
        share = min(done / total, 1.0) if total else 0.0
        bar = "#" * int(share * 24)
        line = f"{visible(self.what)}  [{bar:.<24}] {share:4.0%}  {now - self.begun:.0f} s"
        self.stream.write("\r" + line.ljust(self.width))
        self.stream.flush()
        self.width = len(line)

    def say(self, text: str) -> None:
        """A separate line above the bar; only on a terminal."""
        if self.shown:
            self.clear()
            self.stream.write(text + "\n")

    def clear(self) -> None:
        """Removes the bar."""
        if self.shown and self.width:
            self.stream.write("\r" + " " * self.width + "\r")
            self.stream.flush()
            self.width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.clear()
