"""Content caches: against a slow simulator, errors, figures and plots."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from conftest import ROOT

import fairlead_lab as lab

TRACES = ROOT / "tests" / "traces"


def slow_lru(requests, size):
    """LRU over blocks of 4 KiB, block by block. Returns the removed bytes."""
    order = np.arange(len(requests))
    if np.count_nonzero(np.diff(requests.time_us) < 0) > 0.1 * len(order):
        order = np.argsort(requests.time_us, kind="stable")
    rows = [(int(requests.object[row]), int(requests.bytes[row])) for row in order]
    rows = [(name, count) for name, count in rows if 0 < count < 1 << 46]
    longest = {}
    for name, count in rows:
        longest[name] = max(count, longest.get(name, 0))
    cache, saved = OrderedDict(), 0
    for name, count in rows:
        if longest[name] > size:
            continue
        for at in range(0, count, 4096):
            if (name, at) in cache:
                saved += min(4096, count - at)
                cache.move_to_end((name, at))
            else:
                cache[name, at] = True
                if len(cache) > size // 4096:
                    cache.popitem(last=False)
    return saved


@pytest.mark.parametrize("name", ["nasa.log", "epa.log", "combined.log"])
def test_lru_agrees_with_a_slow_simulator(name):
    requests = lab.read_requests(TRACES / name, max_bad=0.1)
    results = lab.content.run(requests, sizes=["16K", 65536, "1M"])
    assert list(results["size"]) == [16384, 65536, 1 << 20]
    for row in results.rows():
        assert row["content_bytes_removed"] == slow_lru(requests, row["size"])
        share = row["content_bytes_removed"] / row["response_bytes"]
        assert row["removed_ratio"] == pytest.approx(share)


def test_policies_are_an_array_and_a_plot():
    requests = lab.read_requests(TRACES / "nasa.log")
    results = lab.content.run(requests, policies="all")
    shares = lab.content.removed(results)
    assert shares.shape == (6, 9)
    # A larger cache may save less: it lets in files that were too large for the smaller one.
    assert (shares[0] > 0).all() and shares[0, -1] == shares[0].max()
    assert lab.content.plot(results).startswith("<svg")


def test_advice_has_reasons():
    requests = lab.read_requests(TRACES / "nasa.log")
    advice = lab.content.advise(requests)
    assert advice["size"] >= 256 << 10 and advice["policy"] in lab.content.POLICIES
    assert advice["reasons"] and len(advice["rows"]) == 13 * 6
    assert advice["removed_ratio"] <= advice["upper_bound"] <= advice["unlimited_ratio"] + 1e-9


def test_the_paper_over_a_folder():
    report = lab.content.paper([TRACES / "nasa.log", TRACES / "sdsc.log"], max_bad=0.1)
    assert [one["trace"] for one in report["left_out"]] == ["sdsc.log"]
    assert {"table-1", "figure-3", "figure-4", "figure-7", "figure-12"} <= set(report["figures"])
    assert len(report["figures"]["figure-3"]) == 9 * 6
    assert set(report["claims"]["figure"]) >= {"figure-3", "figure-7"}


def test_bad_input_is_an_error():
    requests = lab.read_requests(TRACES / "nasa.log")
    for wrong in [{"sizes": ["4Q"]}, {"sizes": [5000]}, {"policies": "mru"}, {"caches": 0}, {"block": 3000}]:
        with pytest.raises(lab.LabError):
            lab.content.run(requests, **wrong)
    with pytest.raises(lab.LabError, match="no response sizes"):
        lab.content.run(lab.read_requests(TRACES / "sdsc.log", max_bad=0.1))
    with pytest.raises(lab.ArgumentError):
        lab.content.run("nasa.log")
