"""Simulations: results, errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import SOON_S

import fairlead_lab as lab
from fairlead_lab import errors


def plain_lru(accesses, lines):
    """Fully associative LRU, slow and obviously right."""
    held, misses = {}, 0
    for session in accesses.id.tolist():
        if session in held:
            del held[session]
        else:
            misses += 1
            if len(held) == lines:
                del held[next(iter(held))]
        held[session] = None
    return misses


def test_a_cache_of_one_set_is_fully_associative(burst_columns):
    stream = lab.Accesses.from_table(burst_columns)
    run = {"scheme": "mod", "capacity": 16 * 64, "ways": 16}
    results = lab.simulate(stream, [run, {**run, "capacity": "32K", "ways": 4}])
    assert results["misses"][0] == plain_lru(stream, 16)
    assert results["accesses"] == [len(stream)] * 2
    assert results["misses"][1] < results["misses"][0]
    assert results["cold_misses"][1] == stream.sessions


def test_bounds_stand_beside_and_bound():
    stream = lab.standard(sessions=1500, seconds=20)
    results = lab.simulate(stream, ["mod", "2-universal", "spec"], bounds=True)
    assert len(set(results["bound_lru"])) == 1
    assert results["bound_lru"][0] == plain_lru(stream, 512)
    for row in results.rows():
        assert row["bound_compulsory"] <= row["bound_min"] <= row["misses"]
        assert row["misses"] / row["accesses"] == pytest.approx(row["miss_ratio"])
    assert results.to_pandas()["scheme"].tolist() == ["mod", "2-universal", "spec"]


def test_results_do_not_depend_on_threads_or_neighbours():
    stream = lab.standard(sessions=1000, seconds=10)
    schemes = [row["name"] for row in lab.schemes().rows() if row["kind"] == "scheme"]
    together = lab.simulate(stream, schemes, threads=2)["misses"]
    assert together == [lab.simulate(stream, name, threads=1)["misses"][0] for name in schemes]


def test_sessions_are_those_that_are_accessed():
    # Too short for all of its sessions.
    stream = lab.zipf(ids=1000, accesses=50)
    count = len(np.unique(stream.id))
    assert stream.sessions == count == stream.provenance["sessions"] < len(stream.key_port) == 1000
    assert f"{count} sessions" in repr(stream)


def test_generators_are_seeded():
    one, two, other = (lab.standard(sessions=300, seconds=5, seed=seed) for seed in (1, 1, 2))
    assert one.id.tolist() == two.id.tolist() != other.id.tolist()
    drawn = lab.zipf(ids=1000, alpha=1.0, accesses=20_000)
    counts = np.sort(np.bincount(drawn.id))[::-1]
    assert len(drawn) == 20_000 and counts[0] > 5 * counts[20]
    assert drawn.provenance["synthetic"] is True


def test_requests_are_expanded_by_a_model_with_parameters():
    rng = np.random.default_rng(3)
    client = rng.integers(1, 200, 4000)
    requests = lab.Requests.from_columns(np.sort(rng.integers(0, 86_400, 4000)) * 1_000_000, client)
    own_pace = lab.expand(requests)
    dense = lab.expand(requests, concurrent_sessions=300, warm_up_s=30.0)
    assert own_pace.warm_up == 0 and dense.warm_up > 0
    # That is less than a session can be silent for.
    assert "warm-up of 30 s" in dense.provenance["notes"][0]
    usual = lab.expand(requests, concurrent_sessions=300)
    assert usual.provenance["expanded"]["warm_up_s"] == 1801 and "notes" not in usual.provenance
    assert lab.stat(usual)["concurrency"]["mean_open"] == pytest.approx(300, rel=0.01)
    assert dense.provenance["expanded"]["concurrency_mean"] == pytest.approx(300, rel=0.2)
    counted = lab.simulate(dense, "mod")["accesses"][0]
    assert counted == len(dense) - dense.warm_up
    with pytest.raises(errors.ArgumentError, match="unknown field `sesions`.*expected"):
        lab.expand(requests, sesions=1)
    with pytest.raises(errors.ArgumentError, match="periods must be 1 or more"):
        lab.expand(requests, periods=0)


@pytest.mark.parametrize(
    ("run", "kind", "said"),
    [
        ({"scheme": "best"}, errors.ArgumentError, "unknown scheme `best`; available: mod"),
        ({"scheme": "mod", "capacity": 1000}, errors.GeometryError, "1000"),
        ({"scheme": "mod", "capacity": 64}, errors.GeometryError, "64"),
        ({"scheme": "mod", "ways": 3}, errors.GeometryError, "3"),
        ({"scheme": "mod", "capacity": "32Q"}, errors.ArgumentError, "configuration 1.*K, M or G"),
        ({"scheme": "mod", "wais": 4}, errors.ArgumentError, "unknown field `wais`"),
        ({"capacity": "32K"}, errors.ArgumentError, "missing field `scheme`"),
        ({"scheme": "mod", "ways": float("nan")}, errors.ArgumentError, "configuration 1"),
    ],
)
def test_configurations_that_cannot_be_built_are_refused(run, kind, said):
    stream = lab.zipf(ids=10, accesses=100)
    with pytest.raises(kind, match=said):
        lab.simulate(stream, [run])
    assert issubclass(kind, ValueError)


def test_advice_is_drawn_from_the_seed_of_its_stream():
    def asked(**given):
        stream = lab.standard(sessions=200, seconds=3, seed=5)
        return lab.advise(stream, schemes="2-universal", ways=[4], capacities=[8192], **given)

    usual, same, other = asked(), asked(seed=5), asked(seed=6)
    assert [one["asked"]["seed"] for one in (usual, same, other)] == [5, 5, 6]
    assert usual["advised"] == same["advised"] and usual["advised"]["run"]["seed"] == 5
    assert "seed 5." in lab.advice_page(usual)
    with pytest.raises(errors.ArgumentError, match="seed -1"):
        asked(seed=-1)


def test_numpy_numbers_are_numbers():
    stream = lab.zipf(ids=10, accesses=100)
    sizes = np.array([4096, 8192])
    results = lab.simulate(stream, [{"scheme": "mod", "capacity": size} for size in sizes])
    assert results["misses"] == [10, 10]


CTRL_C = """
import json
import fairlead_lab as lab
stream = lab.zipf(ids=100_000, accesses=2_000_000)
runs = [{"scheme": "spec", "seed": seed} for seed in range(5_000)]
print("on", flush=True)
try:
    lab.simulate(stream, runs, threads=1)
except KeyboardInterrupt as stop:
    print(json.dumps([type(stop).__name__, len(stop.finished), stop.finished["seed"][:3]]))
"""


def test_ctrl_c_ends_a_simulation_within_a_second_and_keeps_what_is_finished():
    child = subprocess.Popen(
        [sys.executable, "-c", CTRL_C], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "on\n"
    time.sleep(3)
    begun = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    said, errors_said = child.communicate(timeout=20)
    took = time.monotonic() - begun
    kind, finished, seeds = json.loads(said)
    assert took < SOON_S, took
    assert kind == "Interrupted" and 0 < finished < 5_000 and seeds == [0, 1, 2]
    assert errors_said == ""


BOUNDS = """
import os, time
import fairlead_lab as lab
stream = lab.zipf(ids=100_000, accesses=1_500_000)
def threads():
    return len(os.listdir("/proc/self/task"))
{work}
before = threads()
print("on", flush=True)
try:
    while True:
        {work}
except KeyboardInterrupt:
    # A thread that has ended is listed for a moment.
    time.sleep(0.3)
    print(threads() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(
    "work",
    [
        "lab.fully_associative(stream, 4096, ['min'])",
        "lab.simulate(stream, [{'scheme': 'mod', 'capacity': '64K'}], bounds='all')",
    ],
)
def test_ctrl_c_ends_bounds_too_and_leaves_no_work_behind(work):
    child = subprocess.Popen(
        [sys.executable, "-c", BOUNDS.format(work=work)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "on\n"
    time.sleep(1)
    begun = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    said, _ = child.communicate(timeout=20)
    assert time.monotonic() - begun < SOON_S
    assert int(said) <= 0, "the thread that worked has ended"


def test_advice_is_the_smallest_within_the_tolerance():
    stream = lab.standard(sessions=800, seconds=15)
    advice = lab.advise(stream)
    steps = {step["capacity"]: step["best"]["miss_ratio"] for step in advice["steps"]}
    best = min(steps.values())
    assert advice["advised"]["miss_ratio"] <= best * 1.01
    below = [size for size in steps if size < advice["advised"]["run"]["capacity"]]
    assert all(steps[size] > best * 1.01 for size in below)
    assert "srcdoc" in advice._repr_html_()
    with pytest.raises(errors.ArgumentError, match="tolerance"):
        lab.advise(stream, tolerance=2)


def test_a_stream_is_described():
    facts = lab.stat(lab.standard(sessions=500, seconds=10))
    assert facts["accesses"] > 1000 and len(facts["bits"]["port"]) == 16


def test_single_names_and_sizes_in_any_order_are_taken():
    stream = lab.standard(sessions=300, seconds=5)
    assert set(lab.fully_associative(stream, 16, "lru")) == {"lru"}
    advice = lab.advise(stream, schemes="mod", ways=[4], capacities=[16384, 4096, 4096])
    assert [step["capacity"] for step in advice["steps"]] == [4096, 16384]
    assert advice["stream"]["trace"].startswith("synthetic")


def test_seeds_that_the_core_has_no_room_for():
    log = lab.Requests.from_table({"time_us": [0], "ip": ["192.0.2.1"]})
    for wrong in ({"seed": -1}, {"seed": 1 << 64}, {"tick_ms": -1}):
        with pytest.raises(lab.ArgumentError, match="write a whole number"):
            lab.expand(log, **wrong)


def test_a_page_says_what_is_so_of_the_best_and_of_other_sizes():
    stream = lab.standard(sessions=600, seconds=10)
    # Of all eight the cheapest within so much of the best is not the best.
    advice = lab.advise(stream, schemes=["2-universal"], ways=[2, 8], capacities=[4096, 16384, 131072], tolerance=0.9)
    page = lab.advice_page(advice)
    sizes = [step["capacity"] for step in advice["steps"]]
    assert advice["best"]["miss_ratio"] < advice["advised"]["miss_ratio"]
    assert "No tested configuration is better" not in page and "best tested configuration" in page
    at = sizes.index(advice["advised"]["run"]["capacity"])
    said = {0: "Four times the memory (16", 1: "Eight times the memory (128", 2: "An eighth of it (16"}
    assert said[at] in page and "Twice" not in page and "Half" not in page
    assert "About “2-universal”: universal hash, two banks" in page
    best = dict(advice, advised=advice["best"])
    assert "No tested configuration is better" in lab.advice_page(best)
    assert "connections are open at one time" in page and "peak open" not in page
    # The same size and policy, with other ways.
    other = dict(best, advised={**advice["best"], "miss_ratio": advice["best"]["miss_ratio"] * 1.001})
    assert "No tested configuration is better" not in lab.advice_page(other)


def test_rows_have_the_whole_configuration():
    stream = lab.standard(sessions=300, seconds=5)
    asked = ["mod", {"scheme": "mod", "capacity": "64K"}, {"scheme": "spec", "capacity": 65536, "seed": 2**64 - 1}]
    table = lab.simulate(stream, asked).to_arrow()
    assert table["capacity"].to_pylist() == [32768, 65536, 65536]
    assert table["line"].to_pylist() == [64] * 3 and table["ways"].to_pylist() == [4] * 3
    assert table["seed"].to_pylist() == [1, 1, 2**64 - 1]


def test_a_configuration_without_a_seed_takes_the_streams():
    stream = lab.standard(sessions=800, seconds=10, seed=7)
    small = {"scheme": "2-universal", "capacity": "8K"}
    rows = lab.simulate(stream, [small, {**small, "seed": 7}, {**small, "seed": 3}])
    assert list(rows["seed"]) == [7, 7, 3]
    assert rows["misses"][0] == rows["misses"][1] != rows["misses"][2]
    plain = lab.Accesses.from_columns([1, 2], ["192.0.2.1"] * 2, [1, 1])
    assert list(lab.simulate(plain, "mod")["seed"]) == [1]
