#!/usr/bin/env python3
"""The laboratory beside libCacheSim's Python package: same machine, same run, pinned, in turns.

`make bench-lab` sets everything up and keeps the result in bench/records. Ratios within a round are
the claim; the absolute figures are this machine's at that hour.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import fairlead_lab as lab

#: Sizes at which both are measured: the paper's cache, and one that a processor's caches still hold.
LINES = (512, 8192)
#: Our exact 2 × 4 configurations: LRU, ENRU, the paper's policy, our own.
SCHEMES = ("2-lru", "2-universal", "spec", "tide")


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def alternate(cases: Dict[str, Callable[[], Any]], rounds: int) -> Dict[str, List[float]]:
    """Seconds of each case by round; the order turns, so that none is always the first."""
    names = list(cases)
    seconds: Dict[str, List[float]] = {name: [] for name in names}
    for work in cases.values():
        work()
    for number in range(rounds):
        for at in range(len(names)):
            name = names[(at + number) % len(names)]
            seconds[name].append(timed(cases[name]))
        said = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items())
        print(f"  round {number + 1}: {said}", flush=True)
    return seconds


def rates(seconds: Dict[str, List[float]], units: Dict[str, float], peer: str) -> Dict[str, Any]:
    """Median rates, and medians of the ratios to the peer within a round."""
    result = {}
    for name, times in seconds.items():
        ratios = [
            units[name] / mine / (units[peer] / theirs) for mine, theirs in zip(times, seconds[peer])
        ]
        rate = [units[name] / one for one in times]
        result[name] = {
            "per_second": statistics.median(rate),
            "slowest": min(rate),
            "fastest": max(rate),
            "times_the_peer": statistics.median(ratios),
        }
        print(f"  {name:32} {statistics.median(rate) / 1e6:8.1f} M/s  {statistics.median(ratios):6.1f} ×")
    return result


class Peer:
    """libCacheSim, called as its documentation does."""

    def __init__(self, path: Path) -> None:
        import libcachesim

        self.package = libcachesim
        self.path = str(path)

    def reader(self) -> Any:
        package = self.package
        return package.TraceReader(
            trace=self.path,
            trace_type=package.TraceType.ORACLE_GENERAL_TRACE,
            reader_init_params=package.ReaderInitParam(ignore_obj_size=True),
        )

    def misses(self, policy: str, lines: int) -> float:
        """The miss ratio."""
        cache = getattr(self.package, policy)(cache_size=lines)
        answer = cache.process_trace(self.reader())
        return answer[0] if isinstance(answer, tuple) else answer


def one_configuration(stream: Any, peer: Peer, rounds: int) -> Dict[str, Any]:
    """One exact configuration on one core, beside LRU of as many objects."""
    result = {}
    for lines in LINES:
        print(f"one configuration of {lines} lines, one core")
        cases: Dict[str, Callable[[], Any]] = {"libcachesim LRU": lambda n=lines: peer.misses("LRU", n)}
        for scheme in SCHEMES:
            run = {"scheme": scheme, "capacity": lines * 64}
            cases[scheme] = lambda run=run: lab.simulate(stream, [run], threads=1)
        seconds = alternate(cases, rounds)
        units = dict.fromkeys(cases, float(len(stream)))
        result[str(lines)] = rates(seconds, units, "libcachesim LRU")
    return result


def many_configurations(stream: Any, peer: Peer, rounds: int) -> Dict[str, Any]:
    """Many at once: configuration-accesses a second, on one core and on all."""
    print("many configurations at once, 512 to 4,096 lines")
    sizes = [512 * 64, 1024 * 64, 2048 * 64, 4096 * 64]
    family = [
        {"scheme": "universal", "capacity": size, "ways": ways}
        for size in sizes
        for ways in (1, 2, 4, 8, 16)
    ]
    two_hashes = [
        {"scheme": scheme, "capacity": size} for size in sizes for scheme in ("2-lru", "2-universal")
    ]
    mixed = [
        {"scheme": scheme, "capacity": size}
        for size in sizes
        for scheme in ["mod", "universal", "2-universal", "no-migrate", "spec", "tide"]
    ]
    cores = os.cpu_count() or 1
    cases: Dict[str, Callable[[], Any]] = {
        "libcachesim LRU": lambda: peer.misses("LRU", 2048),
        "LRU family, one core": lambda: lab.simulate(stream, family, threads=1),
        "2-lru and 2-universal, one core": lambda: lab.simulate(stream, two_hashes, threads=1),
        "mixed plan, one core": lambda: lab.simulate(stream, mixed, threads=1),
    }
    units = {
        "libcachesim LRU": float(len(stream)),
        "LRU family, one core": float(len(stream) * len(family)),
        "2-lru and 2-universal, one core": float(len(stream) * len(two_hashes)),
        "mixed plan, one core": float(len(stream) * len(mixed)),
    }
    counts = {"family": len(family), "two hashes": len(two_hashes), "mixed": len(mixed)}
    result = {"configurations": counts}
    result["one core"] = rates(alternate(cases, rounds), units, "libcachesim LRU")
    pin(range(cores))
    both = {
        f"mixed plan, {count} threads": lambda count=count: lab.simulate(stream, mixed, threads=count)
        for count in (1, cores)
    }
    units = dict.fromkeys(both, float(len(stream) * len(mixed)))
    result["all cores"] = rates(alternate(both, rounds), units, "mixed plan, 1 threads")
    pin([cores - 1])
    return result


def reading(path: Path, folder: Path, stream: Any, peer: Peer, rounds: int) -> Dict[str, Any]:
    """From files to columns."""
    print("reading")
    log = folder / "access.log"
    lines = 1_000_000
    with open(log, "w", encoding="ascii") as out:
        for at in range(lines):
            address = at * 2_654_435_761 % 2**32 % 50_000
            out.write(
                f"10.{address >> 16 & 255}.{address >> 8 & 255}.{address & 255} - - "
                f"[09/Jul/1995:{at // 41667:02}:{at // 695 % 60:02}:{at // 12 % 60:02} -0400] "
                f'"GET /shuttle/missions/sts-{at % 71}/page{at % 977}.html HTTP/1.0" 200 {at % 65536}\n'
            )
    own = folder / "trace.lab"
    stream.write(own, "lab")
    records = float(len(stream))


    cases: Dict[str, Callable[[], Any]] = {
        "libcachesim LRU, read and run": lambda: peer.misses("LRU", 512),
        "oracleGeneral": lambda: lab.read_accesses(path),
        "oracleGeneral, read and run 2-lru": lambda: lab.simulate(
            lab.read_accesses(path), [{"scheme": "2-lru"}], threads=1
        ),
        "lab": lambda: lab.read_accesses(own),
        "common log format": lambda: lab.read_requests(log),
    }
    units = dict.fromkeys(cases, records)
    units["common log format"] = float(lines)
    result = rates(alternate(cases, rounds), units, "libcachesim LRU, read and run")
    result["common log format"]["bytes_per_line"] = log.stat().st_size / lines
    return result


def parity(stream: Any, peer: Peer) -> List[Dict[str, Any]]:
    """Misses of fully associative caches, beside libCacheSim's."""
    print("parity")
    rows = []
    for lines in (512, 10_000):
        ours = lab.fully_associative(stream, lines)
        for policy, theirs in (
            ("lru", "LRU"), ("fifo", "FIFO"), ("clock", "Clock"), ("sieve", "Sieve"),
            ("s3-fifo", "S3FIFO"), ("min", "Belady"),
        ):
            if policy not in ours or not hasattr(peer.package, theirs):
                continue
            their = round(peer.misses(theirs, lines) * len(stream))
            rows.append(
                {"lines": lines, "policy": policy, "misses": ours[policy], "libcachesim": their,
                 "difference": ours[policy] - their}
            )
            print(f"  {lines:6} {policy:8} {ours[policy]:>10,} {their:>10,} {ours[policy] - their:+,}")
    return rows


MEMORY = """
import fairlead_lab as lab, resource
stream = lab.zipf(ids=1_000_000, alpha=1.0, accesses={accesses}, seed=1)
lab.simulate(stream, [{{"scheme": "spec"}}], threads=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(accesses: int) -> Dict[str, Any]:
    """The most memory of a process that makes and simulates so many accesses."""
    code = MEMORY.format(accesses=accesses)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mebibytes = int(said.stdout) / 1024
    print(f"memory: {accesses:,} accesses made and simulated in {mebibytes:,.0f} MiB")
    return {"accesses": accesses, "peak_mib": mebibytes}


def pin(cores: Sequence[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def machine() -> Dict[str, Any]:
    facts = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        facts["cpu"] = names[0]
        facts["load_before"] = os.getloadavg()[0]
    except (OSError, IndexError):
        pass
    return facts


def commit() -> str:
    root = Path(__file__).resolve().parents[1]
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    said = subprocess.run(words, cwd=root, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accesses", type=int, default=20_000_000)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-accesses", type=int, default=100_000_000)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    facts = machine()
    pin([(os.cpu_count() or 1) - 1])
    with tempfile.TemporaryDirectory(prefix="fairlead-lab-bench-") as name:
        path = Path(name) / "zipf.oracleGeneral"
        stream = lab.zipf(ids=given.ids, alpha=1.0, accesses=given.accesses, seed=1)
        stream.write(path, "oracleGeneral")
        peer = Peer(path)
        result = {
            "one_configuration": one_configuration(stream, peer, given.rounds),
            "many_configurations": many_configurations(stream, peer, max(3, given.rounds - 2)),
            "reading": reading(path, Path(name), stream, peer, given.rounds),
            "parity": parity(stream, peer),
            "memory": memory(given.memory_accesses),
        }
    record = {
        "command": " ".join(["bench/lab.py", *sys.argv[1:]]),
        "commit": commit(),
        "versions": {"fairlead-lab": lab.__version__, "libcachesim": version_of("libcachesim")},
        "machine": facts,
        "workload": {"accesses": given.accesses, "ids": given.ids, "alpha": 1.0, "seed": 1},
        "result": result,
    }
    if given.record:
        given.record.mkdir(parents=True, exist_ok=True)
        kept = given.record / f"lab-{record['commit']}.json"
        kept.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"kept in {kept}")


def version_of(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main()
