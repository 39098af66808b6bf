"""Advice as a summary page: one recommendation, one plot, its cost, and the effect of more
memory."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _core, plots
from .given import told_of
from .page import Page
from .words import bits, number, percent, points, size

__all__ = ["advice_page"]


def advice_page(advice: Mapping[str, Any]) -> str:
    """Renders the output of ``fairlead-lab advise --json`` as a page."""
    with told_of("advice", "advise"):
        return _page(advice)


def _page(advice: Mapping[str, Any]) -> str:
    stream, advised = advice["stream"], advice["advised"]
    page = Page(
        f"Connection state for {stream['trace']}",
        "How much fast memory for connection state this traffic needs, how it should be organised, "
        "and what it costs.",
    )
    if stream.get("synthetic"):
        page.text("This traffic is synthetic, not recorded.")
    _recommendation(page, advice)
    _plot(page, advice)
    _cost(page, advised)
    _more(page, advice)
    _basis(page, advice)
    version = advice.get("version")
    footer = f"fairlead-lab {version}. " if version else ""
    return page.html(
        contents=False, footer=footer + f"Stream {stream['stream']}, seed {advice['asked']['seed']}."
    )


def _capacity(choice: Mapping[str, Any]) -> int:
    return int(choice["run"]["capacity"])


def _recommendation(page: Page, advice: Mapping[str, Any]) -> None:
    advised, best = advice["advised"], advice["best"]
    run, ratio = advised["run"], advised["miss_ratio"]
    tolerance = advice["asked"]["tolerance"]
    lines = advised["hardware"]["lines"]
    texts = [
        f"It holds {number(lines)} connections and finds the state of "
        f"{percent(1 - ratio)} of packets there; {percent(ratio)} go to main memory."
    ]
    if best["miss_ratio"] == ratio:
        texts.append("No tested configuration is better.")
    else:
        texts.append(
            f"This is within {percent(tolerance, 0)} of the best tested configuration: "
            f"{size(_capacity(best))} with {best['run']['scheme']} and {best['run']['ways']} ways "
            f"leaves {percent(best['miss_ratio'])}."
        )
    texts += _said_of(run["scheme"])
    page.call(
        f"Take {size(_capacity(advised))}, policy “{run['scheme']}”, {run['ways']} ways.", *texts
    )


def _said_of(scheme: str) -> List[str]:
    """The registry's description of a policy, without its settings."""
    name = scheme.split(",")[0]
    known = (text for kind, known, _, text in _core.registered() if (kind, known) == ("scheme", name))
    return [f"About “{name}”: {text}." for text in known]


def _plot(page: Page, advice: Mapping[str, Any]) -> None:
    steps = advice["steps"]
    sizes = [int(step["capacity"]) for step in steps]

    def series(values: Sequence[Optional[float]]) -> Tuple[List[float], List[float]]:
        known = [(x, y) for x, y in zip(sizes, values) if y is not None]
        return [x for x, _ in known], [y for _, y in known]

    advised = advice["advised"]
    curves: Dict[str, Tuple[List[float], List[float]]] = {
        "best tested": series([step["best"]["miss_ratio"] for step in steps]),
        "conventional (modulo, LRU)": series([step["conventional_miss_ratio"] for step in steps]),
        "fully associative LRU": series([step["lru_miss_ratio"] for step in steps]),
        "Belady’s MIN": series([step["min_miss_ratio"] for step in steps]),
    }
    curves = {name: curve for name, curve in curves.items() if curve[0]}
    svg = plots.lines(
        curves,
        "fast memory for connection state",
        "packets that miss",
        "Miss ratio by capacity",
        logx=True,
        percent=True,
        ticks={x: size(x).replace("\u00a0", "\n") for x in sizes},
        dashed=["fully associative LRU", "Belady’s MIN"],
        mark=(_capacity(advised), advised["miss_ratio"], "advised"),
    )
    page.figure(
        svg,
        "Packets whose connection state is not in fast memory, by its size. Dashed: fully "
        "associative LRU, which cannot be built at speed, and Belady’s MIN, which knows the future: no "
        "policy that gives every newcomer a line misses less.",
    )


def _policy(hardware: Mapping[str, Any]) -> str:
    """State of the policy: per line, per set, and per cache."""
    each = hardware["policy_bits_a_line"]
    parts = ["1 bit a line" if each == 1 else f"{each} bits a line"]
    if hardware["policy_bits_a_set"]:
        parts.append(f"{hardware['policy_bits_a_set']} a set")
    if hardware["policy_bits_besides"]:
        parts.append(f"{number(hardware['policy_bits_besides'])} besides")
    return ", ".join(parts)


def _cost(page: Page, advised: Mapping[str, Any]) -> None:
    page.section("What it costs")
    hardware, toe = advised["hardware"], advised["toe"]
    overhead = hardware["bits"] - hardware["payload_bits"]
    rows: List[List[str]] = [
        ["memory for state", bits(hardware["payload_bits"])],
        [
            f"tags and pointers ({hardware['tag_bits_a_line']} bits a line), "
            f"policy ({_policy(hardware)})",
            bits(overhead),
        ],
        ["all bits", bits(hardware["bits"])],
    ]
    cost = hardware.get("hash")
    if cost:
        rows.append(
            [
                f"{cost['functions']} hash functions of {cost['input_bits']} to "
                f"{cost['output_bits']} bits",
                f"{number(cost['gates'])} gates, {cost['gate_delays']} gate delays",
            ]
        )
    rows.append(["average time for a packet in an offload engine", f"{toe['receive_ns']:.1f} ns"])
    rows.append(["of which to get at the connection’s state", f"{toe['tcb_ns']:.1f} ns"])
    page.table(["what", "cost"], rows)


def _times(larger: int, smaller: int) -> str:
    """The ratio of a larger size to another, for the start of a sentence."""
    words = {2: "Twice", 4: "Four times", 8: "Eight times"}
    return words.get(larger // smaller, f"{larger // smaller} times")


def _part(smaller: int, larger: int) -> str:
    """The fraction of one size that another is, for the start of a sentence."""
    words = {2: "Half of it", 4: "A quarter of it", 8: "An eighth of it"}
    return words.get(larger // smaller, f"1/{larger // smaller} of it")


def _more(page: Page, advice: Mapping[str, Any]) -> None:
    steps, advised = advice["steps"], advice["advised"]
    page.section("What more memory would buy")
    here = next((at for at, s in enumerate(steps) if int(s["capacity"]) == _capacity(advised)), None)
    if here is not None and here + 1 < len(steps):
        after = steps[here + 1]["best"]
        gain = advised["miss_ratio"] - after["miss_ratio"]
        saved = 1 - after["toe"]["receive_ns"] / advised["toe"]["receive_ns"]
        larger = int(steps[here + 1]["capacity"])
        page.text(
            f"{_times(larger, _capacity(advised))} the memory ({size(larger)}) would spare "
            f"{percent(gain)} of packets the way to main memory and make the average packet "
            f"{percent(saved)} faster."
        )
    elif here is not None:
        page.text(
            "It is the largest tested size. A cache of any size misses at least "
            f"{percent(advice['compulsory_miss_ratio'])}: these packets are their connection’s first."
        )
    if here:
        before = steps[here - 1]["best"]
        loss = before["miss_ratio"] - advised["miss_ratio"]
        smaller = int(steps[here - 1]["capacity"])
        page.text(
            f"{_part(smaller, _capacity(advised))} ({size(smaller)}) would send {percent(loss)} of "
            "packets more to main memory."
        )
    heads = ["memory", "policy", "misses", "points", "conventional", "LRU bound", "Belady’s MIN", "ns a packet"]
    rows: List[List[Any]] = []
    marks = {}
    for at, step in enumerate(steps):
        best = step["best"]
        if at == here:
            marks[at, 0] = "good"
        rows.append(
            [
                size(int(step["capacity"])),
                f"{best['run']['scheme']}, {best['run']['ways']} ways",
                percent(best["miss_ratio"]),
                points(best["miss_ratio"] - advised["miss_ratio"]),
                percent(step["conventional_miss_ratio"]),
                percent(step["lru_miss_ratio"]),
                percent(step["min_miss_ratio"]),
                f"{best['toe']['receive_ns']:.1f}",
            ]
        )
    page.table(heads, rows, caption="The best tested configuration at each size.", marks=marks)


def _basis(page: Page, advice: Mapping[str, Any]) -> None:
    page.section("What this rests on")
    stream, asked = advice["stream"], advice["asked"]
    page.points(
        [
            f"{number(stream['accesses'])} accesses of {number(stream['sessions'])} connections over "
            f"{number(round(stream['span_s']))} s, of which {number(stream['warm_up'])} only warm the cache.",
            f"{percent(advice['compulsory_miss_ratio'])} of packets are a connection’s first; no cache "
            "avoids these misses.",
            "Tried: " + ", ".join(asked["schemes"]) + "; ways "
            + ", ".join(str(ways) for ways in asked["ways"]) + ".",
            *_peak(advice.get("concurrency")),
            *stream.get("notes", []),
        ]
    )
    made = {
        key: value for key, value in stream["made"].items() if value is not None and key != "path"
    }
    rows = [[name, value] for name, value in _flat(made)]
    page.table(["parameter", "value"], rows, folded="How accesses were made from the trace")


def _peak(concurrency: Optional[Mapping[str, Any]]) -> List[str]:
    if not concurrency:
        return []
    return [
        f"At most {number(concurrency['peak_open'])} connections are open at one time, "
        f"{number(concurrency['mean_open'])} on average; at most {number(concurrency['peak_on'])} "
        f"have a packet within {number(concurrency['on_s'])} s."
    ]


def _flat(value: Any, before: str = "") -> List[Tuple[str, str]]:
    if isinstance(value, Mapping):
        return [
            pair
            for key, inner in value.items()
            for pair in _flat(inner, f"{before}.{key}" if before else str(key))
        ]
    return [(before, str(value))]
