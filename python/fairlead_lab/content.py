"""Content caches on network interfaces: how much of a web server's content stays off the bus.

>>> import fairlead_lab as lab
>>> log = lab.read_requests("access.log.gz")                  # doctest: +SKIP
>>> lab.content.run(log, sizes=["4M", "16M"], policies="all")  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from . import _core
from .errors import ArgumentError
from .frame import Frame
from .given import path_of, share, teller, whole
from .plots import lines
from .runs import core_of
from .streams import Requests
from .terminal import Progress

__all__ = ["POLICIES", "advise", "paper", "plot", "removed", "run"]

#: All policies.
POLICIES = ["lru", "fifo", "clock", "sieve", "s3-fifo", "gdsf"]

Tell = Optional[Callable[[int, int], None]]
Size = Union[int, str]
#: Bytes of the largest cache.
BYTES_MAX = 1 << 40
CACHES_MAX = 64
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


def run(
    requests: Requests,
    sizes: Sequence[Size] = (),
    policies: Union[str, Sequence[str]] = "lru",
    caches: int = 1,
    split: str = "alternate",
    unit: str = "block",
    block: Size = 4096,
    threads: int = 0,
    progress: Tell = None,
) -> Frame:
    """Simulates caches of ``sizes`` (by default the paper's, 64K to 16M) under ``policies`` (names,
    or ``"all"``). One row for each; ``removed_ratio`` is the share of the content that does not
    cross the bus. ``split``: how requests are divided between several caches (``alternate``,
    ``client``, ``halves``); ``unit``: what is evicted (``block``, ``file``)."""
    if isinstance(policies, str):
        policies = POLICIES if policies == "all" else [policies]
    asked: Dict[str, Any] = {
        "sizes": [_bytes(size, "sizes") for size in sizes],
        "policies": list(policies),
        "caches": whole(caches, "caches", CACHES_MAX),
        "split": split,
        "unit": unit,
        "block": _bytes(block, "block"),
    }
    with Progress("content") as shown:
        text = _core.content_run(core_of(requests, Requests), json.dumps(asked), threads, teller(progress, shown))
    return Frame.of_rows(json.loads(text))


def advise(
    requests: Requests,
    size_min: Size = "256K",
    size_max: Size = "1G",
    target: float = 0.9,
    margin: float = 0.01,
    caches: int = 1,
    threads: int = 0,
    progress: Tell = None,
) -> Dict[str, Any]:
    """Recommends the smallest size that saves ``target`` of what an unlimited cache saves, and a
    policy: LRU, unless another saves more by ``margin``. ``reasons`` says why; ``rows`` is a frame
    of all simulations."""
    sizes = (_bytes(size_min, "size_min"), _bytes(size_max, "size_max"))
    with Progress("content") as shown:
        text = _core.content_advise(
            core_of(requests, Requests),
            sizes,
            share(target, "target"),
            share(margin, "margin"),
            whole(caches, "caches", CACHES_MAX),
            threads,
            teller(progress, shown),
        )
    advice: Dict[str, Any] = json.loads(text)
    advice["rows"] = Frame.of_rows(advice["rows"])
    return advice


def paper(
    paths: Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]],
    max_bad: float = 0.01,
    threads: int = 0,
    progress: Tell = None,
) -> Dict[str, Any]:
    """The figures of the paper over these logs or folders. ``figures`` has a frame of each by its
    name (``figure-3``); ``claims`` is a frame of the paper's claims."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    with Progress("content") as shown:
        text = _core.content_paper(
            [path_of(path) for path in given], threads, share(max_bad, "max_bad"), teller(progress, shown)
        )
    report: Dict[str, Any] = json.loads(text)
    claims: List[Mapping[str, Any]] = []
    figures: Dict[str, Frame] = {}
    for figure in report["figures"]:
        claims += [{"figure": figure["id"], **claim} for claim in figure["claims"]]
        figures[figure["id"]] = Frame.of_rows(figure["rows"])
    return {**report, "figures": figures, "claims": Frame.of_rows(claims)}


def removed(results: Frame) -> "np.ndarray[Any, Any]":
    """The removed share as an array: a row for each policy, a column for each size, in the order
    of the results."""
    names = list(dict.fromkeys(results["policy"]))
    sizes = list(dict.fromkeys(results["size"]))
    out = np.full((len(names), len(sizes)), np.nan)
    for row in results.rows():
        out[names.index(row["policy"]), sizes.index(row["size"])] = row["removed_ratio"]
    return out


def plot(results: Frame) -> str:
    """The removed share over the size of the cache, one line for each policy, as SVG."""
    names = list(dict.fromkeys(results["policy"]))
    sizes = list(dict.fromkeys(results["size"]))
    series = {name: (sizes, values.tolist()) for name, values in zip(names, removed(results))}
    return lines(
        series,
        "size of the cache",
        "content removed",
        "Content removed by caches",
        logx=True,
        percent=True,
        ticks={size: _shown(size) for size in sizes},
    )


def _shown(size: int) -> str:
    for unit in ("G", "M", "K"):
        if size >= 1 << UNITS[unit] and size % (1 << UNITS[unit]) == 0:
            return f"{size >> UNITS[unit]}{unit}"
    return str(size)



def _bytes(size: Size, name: str) -> int:
    """A number of bytes, or text such as ``"4M"``."""
    if not isinstance(size, str):
        return whole(size, name, BYTES_MAX)
    text = size.strip().upper()
    for end in ("IB", "B"):
        text = text[: -len(end)] if text.endswith(end) else text
    digits = text.rstrip("KMG")
    if not digits.isascii() or not digits.isdigit() or text[len(digits) :] not in UNITS:
        raise ArgumentError(f"{name} {size!r}: write a number of bytes, or one with K, M or G")
    return whole(int(digits) << UNITS[text[len(digits) :]], name, BYTES_MAX)
