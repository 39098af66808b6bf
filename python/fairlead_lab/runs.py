"""Simulations, synthetic streams, stream statistics, and advice."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

from . import _core
from .errors import ArgumentError, Interrupted
from .frame import Frame
from .given import SEED_MAX, each_of, path_of, share, teller, text_of, whole, yes_or_no
from .streams import Accesses, Requests
from .terminal import Progress

__all__ = ["advise", "expand", "expand_file", "fully_associative", "schemes", "simulate", "standard", "stat", "zipf"]

Tell = Optional[Callable[[int, int], None]]
#: The largest cache, in lines.
LINES_MAX = 1 << 31
#: The largest cache, in bytes.
BYTES_MAX = 1 << 40
#: The longest tick.
TICK_MS_MAX = (1 << 32) - 1
#: A configuration: ``scheme``, and what is not as in the paper of ``capacity line ways index_bits
#: threshold seed``.
Configuration = Union[str, Mapping[str, Any]]


def expand(requests: Requests, seed: int = 1, tick_ms: int = 250, **parameters: Any) -> Accesses:
    """Expands requests to accesses, by a model with configurable parameters: how many sessions
    are open at once (``concurrent_sessions``), ``session_timeout_s``, ``ports``, ``packets``, …;
    docs/lab.md lists all of them."""
    text = _json(parameters, "expansion")
    seed, tick_ms = whole(seed, "seed", SEED_MAX), whole(tick_ms, "tick_ms", TICK_MS_MAX)
    return Accesses(_core.Accesses.expand(core_of(requests, Requests), text, seed, tick_ms))


def expand_file(
    path: Union[str, "os.PathLike[str]"],
    seed: int = 1,
    format: Optional[str] = None,
    progress: Tell = None,
    sort: bool = False,
    max_bad: float = 0.01,
    tick_ms: int = 250,
    **parameters: Any,
) -> Accesses:
    """Reads a trace and expands it to accesses, in one step and without keeping its requests. Rows
    that are accesses already are an error where they are out of order, unless ``sort`` is set; so
    are more unreadable rows than ``max_bad`` of all."""
    recipe: Dict[str, Any] = {
        "path": _encoded(path_of(path)),
        "seed": whole(seed, "seed", SEED_MAX),
        "max_bad": share(max_bad, "max_bad"),
        "tick_ms": whole(tick_ms, "tick_ms", TICK_MS_MAX),
        "expansion": parameters,
    }
    if yes_or_no(sort, "sort"):
        recipe["sort"] = True
    if format is not None:
        recipe["format"] = text_of(format, "format")
    with Progress(f"read {os.path.basename(recipe['path'])}") as shown:
        return Accesses(_core.Accesses.of_recipe(_json(recipe, "recipe"), teller(progress, shown)))


def standard(sessions: int = 4000, seed: int = 1, **parameters: Any) -> Accesses:
    """The standard workload: ``sessions`` that are open all the time, in ON bursts and OFF pauses.
    Synthetic. Parameters: ``seconds burst_mean gap_mean_s off_median_s ports`` and others."""
    seed = whole(seed, "seed", SEED_MAX)
    recipe = {"standard": {"sessions": sessions, **parameters}, "seed": seed}
    return Accesses(_core.Accesses.of_recipe(_json(recipe, "standard"), None))


def zipf(
    ids: int = 1_000_000, alpha: float = 1.0, accesses: int = 20_000_000, seed: int = 1
) -> Accesses:
    """Independent accesses; the k-th most frequent session has weight 1/k^alpha. Synthetic."""
    seed = whole(seed, "seed", SEED_MAX)
    recipe = {"zipf": {"ids": ids, "alpha": alpha, "accesses": accesses}, "seed": seed}
    return Accesses(_core.Accesses.of_recipe(_json(recipe, "zipf"), None))


def simulate(
    accesses: Accesses,
    configurations: Union[Configuration, Sequence[Configuration]],
    bounds: Union[bool, str] = False,
    threads: int = 0,
    progress: Tell = None,
) -> Frame:
    """Runs every configuration over the accesses; a row for each, in their order, with all of the
    configuration: capacities in bytes, and what was left out as it is in the paper.

    A configuration is a scheme's name or a dictionary: ``{"scheme": "spec", "capacity": "32K",
    "ways": 4}``. Without a ``seed`` it takes the stream's, which is 1 where the stream has none, as
    of a capture. All are run together: the stream is decoded and hashed once for many. ``threads``
    of 0 takes all cores. With ``bounds``, fully associative LRU and Belady's MIN stand beside; with
    ``bounds="all"`` also what knowing the future is worth under each index.

    Ctrl-C raises :class:`Interrupted` within a second; its ``finished`` is a frame of the
    configurations that were done.
    """
    if isinstance(configurations, (str, Mapping)):
        configurations = [configurations]
    asked = [_asked(one) for one in _listed(configurations)]
    texts = [_json(one, f"configuration {at + 1}") for at, one in enumerate(asked)]
    with Progress("simulate") as shown:
        try:
            done = _core.simulate(
                core_of(accesses), texts, _bounds(bounds), whole(threads, "threads"), teller(progress, shown)
            )
        except Interrupted as stop:
            stop.finished = _results(stop.finished or [])
            raise
    return _results(done)


def _listed(configurations: Any) -> Sequence[Any]:
    # Iterating a table would give only its column names.
    if hasattr(configurations, "columns") or not hasattr(configurations, "__iter__"):
        raise ArgumentError(
            "configurations: write a scheme's name, a dictionary, or a list of them, not "
            f"{type(configurations).__name__}"
        )
    return list(configurations)


def _asked(configuration: Any) -> Dict[str, Any]:
    if isinstance(configuration, str):
        return {"scheme": configuration}
    if not isinstance(configuration, Mapping):
        raise ArgumentError(
            f"configuration {configuration!r}: write a scheme's name, or a dictionary with one"
        )
    return dict(configuration)


def core_of(stream: Any, wanted: Union[Type[Accesses], Type[Requests]] = Accesses) -> Any:
    """The core's object of ``stream``, if it is of the ``wanted`` kind."""
    if not isinstance(stream, wanted):
        makers = "read_requests or Requests.from_table" if wanted is Requests else (
            "expand, expand_file, standard, read_accesses or Accesses.from_table"
        )
        raise ArgumentError(
            f"{wanted.__name__} are needed, not {type(stream).__name__}; {makers} makes them"
        )
    return stream._core


def _results(done: Sequence[Tuple[int, str]]) -> Frame:
    rows = []
    for _, text in done:
        row = json.loads(text)
        bounds = row.pop("bounds", None) or {}
        rows.append({**row, **{f"bound_{name}": value for name, value in bounds.items()}})
    return Frame.of_rows(rows)


def fully_associative(
    accesses: Accesses, lines: int, policies: Union[str, Sequence[str]] = ()
) -> Dict[str, int]:
    """Misses of fully associative caches with this number of lines, by policy: ``lru fifo clock
    sieve
    s3-fifo``, and Belady's ``min``."""
    lines = whole(lines, "lines", LINES_MAX)
    return dict(_core.fully_associative(core_of(accesses), lines, _several(policies, "policies")))


def stat(accesses: Accesses) -> Dict[str, Any]:
    """Statistics of a stream: ON and OFF times, averages of the identifiers' bits, sessions by
    set, open sessions."""
    told: Dict[str, Any] = json.loads(_core.stat(core_of(accesses)))
    return told


class Advice(Dict[str, Any]):
    """A recommendation, as a dictionary; a notebook shows it as the summary page."""

    def _repr_html_(self) -> str:
        import html

        from .advice import advice_page

        page = html.escape(advice_page(self), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40rem;border:0"></iframe>'


def advise(
    accesses: Accesses,
    schemes: Union[str, Sequence[str]] = (),
    ways: Union[int, Sequence[int]] = (),
    capacities: Union[int, Sequence[int]] = (),
    tolerance: float = 0.01,
    threads: int = 0,
    progress: Tell = None,
    seed: Optional[int] = None,
) -> Advice:
    """The smallest cache within ``tolerance`` of the best miss ratio, which policy, what it costs,
    and what more memory would buy. What is left empty has its usual values; capacities in bytes.
    Index functions and chance are drawn from ``seed``, the stream's unless it is given."""
    if share(tolerance, "tolerance") == 1:
        raise ArgumentError(f"tolerance {tolerance}: write a share below 1, as 0.01")
    ways = [whole(one, "ways") for one in each_of(ways, "ways")]
    capacities = [whole(one, "capacities", BYTES_MAX) for one in each_of(capacities, "capacities")]
    seed = None if seed is None else whole(seed, "seed", SEED_MAX)
    with Progress("advise") as shown:
        text = _core.advise(
            core_of(accesses), _several(schemes, "schemes"), ways, capacities, tolerance,
            whole(threads, "threads"), teller(progress, shown), seed,
        )
    return Advice({**json.loads(text), "version": _core.version()})


def schemes() -> Frame:
    """Every scheme, index and policy by name, with a line of help; ``own`` marks the project's.

    ``bits_a_line`` is what a policy keeps beside tags in the paper's two banks of 4 ways.
    """
    own = _core.own_scheme()
    return Frame.of_rows(
        [
            {"kind": kind, "name": name, "own": name == own, "bits_a_line": bits, "help": text}
            for kind, name, bits, text in _core.registered()
        ]
    )


def _several(names: Union[str, Sequence[str]], what: str) -> List[str]:
    """A list of names; a single name becomes a list of one."""
    return [text_of(name, what) for name in each_of(names, what)]


def _encoded(name: str) -> str:
    """A name that can be represented in a recipe, which is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        problem = "its name is not UTF-8: give it another, or a link with another"
        raise ArgumentError(f"path {name!r}: {problem}") from None
    return name


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{what}: {error}") from None


def _plain(value: Any) -> Any:
    """Serializes numpy numbers and paths."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is neither number nor text")


def _bounds(asked: Union[bool, str]) -> int:
    if asked not in (False, True, "all"):
        raise ArgumentError(f'bounds {asked!r}: write False, True or "all"')
    return 2 if asked == "all" else int(asked)
