"""How protocol stacks use caches: sweeps over traces of ``fairlead lab protocol run``, as arrays and
plots.

>>> from fairlead_lab import protocol
>>> swept = protocol.sweep("T.refs")                        # doctest: +SKIP
>>> swept.misses["misses_per_packet"]                       # doctest: +SKIP
>>> open("misses.svg", "w").write(swept.plot_misses())      # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core, plots
from .errors import ArgumentError, MissingError
from .frame import Frame
from .given import each_of, path_of, teller, text_of, whole

__all__ = ["Sweep", "caches", "layers", "sweep"]

PathLike = Union[str, "os.PathLike[str]"]
Tell = Optional[Callable[[int, int], None]]
#: What a cache is: size (as a number or ``"32K"``), ways, bytes of a line.
Shape = Tuple[Union[int, str], int, int]

#: Keys of a spread of numbers, and what is appended to their column.
SPREAD = {"median": "", "least": "_least", "most": "_most", "mean": "_mean"}
WARM_UP_MAX = 1 << 40


class Sweep:
    """What a sweep found. Each attribute is a :class:`Frame` with numpy columns: ``packets``,
    ``misses`` (a row for each cache), ``fits`` (the smallest cache that a warm packet fits in),
    ``machines`` and ``clocks``. Columns of numbers per packet are medians; ``…_least``, ``…_most``
    and ``…_mean`` stand beside them."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report = dict(report)
        self.packets = _frame(report["packets"])
        rows = [
            {
                **row,
                "miss_ratio": row["misses"] / row["references"] if row["references"] else 0.0,
                "misses_per_packet": row["misses"] / row["packets"] if row["packets"] else 0.0,
            }
            for row in report["misses"]
        ]
        self.misses = _frame(rows)
        self.fits = _frame(report["fits"])
        self.machines = _frame(report["machines"])
        self.clocks = _frame(report["clocks"])

    @property
    def notes(self) -> List[str]:
        """What to know before reading the numbers."""
        return list(self.report["notes"])

    def plot_misses(
        self, part: str = "instruction", state: str = "warm", line: Optional[int] = None,
        kind: Optional[str] = None,
    ) -> str:
        """Misses a packet over the size of the cache, a curve for each number of ways, as SVG."""
        _one_of(part, ("instruction", "data"), "part")
        _one_of(state, ("cold", "warm"), "state")
        kind = self._kind(kind)
        lines = sorted({row["line"] for row in self.misses.rows()})
        line = (64 if 64 in lines else lines[0]) if line is None else line
        rows = [
            row for row in self.misses.rows()
            if (row["part"], row["state"], row["kind"], row["line"]) == (part, state, kind, line)
        ]
        if not rows:
            raise MissingError(f"no {state} caches with lines of {line} bytes; there are {lines}")
        curves: Dict[str, Tuple[List[float], List[float]]] = {}
        for row in rows:
            xs, ys = curves.setdefault(f"{row['ways']} ways", ([], []))
            xs.append(row["size"])
            ys.append(row["misses_per_packet"])
        sizes = sorted({row["size"] for row in rows})
        return plots.lines(
            curves, "size of the cache", "misses a packet",
            f"{part} misses of a {state} packet ({kind}) by size and ways", logx=True,
            ticks={size: f"{size // 1024} KiB" for size in sizes},
        )

    def plot_clocks(self, state: str = "warm", kind: Optional[str] = None) -> str:
        """How much faster packets are with a faster clock and memory as before, as SVG."""
        _one_of(state, ("cold", "warm"), "state")
        kind = self._kind(kind)
        curves: Dict[str, Tuple[List[float], List[float]]] = {}
        for row in self.clocks.rows():
            if (row["state"], row["kind"]) == (state, kind):
                xs, ys = curves.setdefault(row["machine"], ([], []))
                xs.append(row["clock"])
                ys.append(row["gain"])
        if not curves:
            raise MissingError(f"no {state} packets of kind {kind!r} on a machine")
        return plots.lines(
            curves, "clock, times the machine's", "times as fast",
            f"gain of {state} packets ({kind}) from a faster clock", logx=True,
        )

    def _kind(self, kind: Optional[str]) -> str:
        known = [str(name) for name in self.packets["kind"]]
        if kind is None:
            return known[0]
        _one_of(kind, known, "kind")
        return kind


def sweep(
    trace: PathLike,
    sizes: Sequence[Union[int, str]] = (),
    ways: Sequence[int] = (),
    lines: Sequence[int] = (),
    machines: Sequence[str] = (),
    warm_up: Optional[int] = None,
    threads: int = 0,
    progress: Tell = None,
    policy: str = "lru",
) -> Sweep:
    """Simulates caches of all ``sizes`` × ``ways`` × ``lines`` under a replacement ``policy``, and
    whole ``machines``, cold and warm, in one reading of a trace. ``docs/protocol-study.md`` has the
    policies and says what is left out."""
    asked: Dict[str, Any] = {
        "sizes": each_of(sizes, "sizes"),
        "ways": [whole(one, "ways") for one in each_of(ways, "ways")],
        "lines": [whole(one, "lines", 1 << 20) for one in each_of(lines, "lines")],
        "machines": [path_of(one, "machines") for one in each_of(machines, "machines")],
        "policy": text_of(policy, "policy"),
    }
    if warm_up is not None:
        asked["warm_up"] = whole(warm_up, "warm_up", WARM_UP_MAX)
    text = _core.protocol_sweep(
        path_of(trace), _json(asked), whole(threads, "threads"), teller(progress, None)
    )
    return Sweep(json.loads(text))


def layers(trace: PathLike, patterns: Optional[PathLike] = None, progress: Tell = None) -> Frame:
    """Instructions, accesses and lines of each packet by layer of the stack; ``patterns`` is a TOML
    file. The traced program must still be where it was, with line tables."""
    own = None if patterns is None else path_of(patterns, "patterns")
    text = _core.protocol_layers(path_of(trace), own, teller(progress, None))
    return _frame(json.loads(text)["rows"])


def caches(
    trace: PathLike,
    i1: Shape = ("32K", 8, 64),
    d1: Shape = ("32K", 8, 64),
    ll: Shape = ("1M", 16, 64),
    progress: Tell = None,
) -> Dict[str, Dict[str, int]]:
    """References and misses of an instruction and a data cache over a second level, in the whole
    trace, as cachegrind counts them."""
    text = _core.protocol_caches(
        path_of(trace), _shape(i1, "i1"), _shape(d1, "d1"), _shape(ll, "ll"),
        teller(progress, None),
    )
    counts: Dict[str, Dict[str, int]] = json.loads(text)
    return counts


def _shape(given: Any, name: str) -> Tuple[int, int, int]:
    parts = each_of(given, name)
    if len(parts) != 3:
        raise ArgumentError(f"{name} {given!r}: write size, ways and bytes of a line")
    size, ways, line = parts
    return _bytes(size, name), whole(ways, name), whole(line, name, 1 << 20)


def _bytes(given: Any, name: str) -> int:
    """A number of bytes, as a number or as text with K, M or G."""
    if not isinstance(given, str):
        return whole(given, name, 1 << 40)
    text = text_of(given, name).strip().upper()
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    digits = text[:-1] if shift else text
    if not digits.isdecimal() or len(digits) > 12:
        raise ArgumentError(f"{name} {given!r}: write bytes, or with K, M or G: 32K")
    return int(digits) << shift


def _json(asked: Mapping[str, Any]) -> str:
    try:
        return json.dumps(asked)
    except TypeError as error:
        raise ArgumentError(f"sweep: {error}") from error


def _one_of(given: Any, known: Sequence[str], what: str) -> None:
    if given not in known:
        raise ArgumentError(f"{what} {given!r}: write one of {', '.join(known)}")


def _frame(rows: Sequence[Mapping[str, Any]]) -> Frame:
    """Columns as numpy arrays; a spread becomes four columns."""
    flat = []
    for row in rows:
        one: Dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                one.update({name + end: value[key] for key, end in SPREAD.items()})
            else:
                one[name] = value
        flat.append(one)
    columns = Frame.of_rows(flat).to_dict()
    arrays = {
        name: values if any(value is None for value in values) else np.array(values)
        for name, values in columns.items()
    }
    return Frame(arrays)
