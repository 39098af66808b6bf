"""The protocol study: arrays and plots of sweeps over traces of references."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest

from fairlead_lab import errors, protocol

LOOP = 100


def stored(payload: bytes) -> bytes:
    """A Zstandard frame with the payload as it is."""
    frame = struct.pack("<IBI", 0xFD2FB528, 0xA0, len(payload))
    for at in range(0, len(payload), 1 << 16):
        part = payload[at : at + (1 << 16)]
        last = at + len(part) == len(payload)
        frame += struct.pack("<I", int(last) | len(part) << 3)[:3] + part
    return frame


def section(tag: bytes, contents: bytes, records: int) -> bytes:
    head = struct.pack("<4sIII", tag, len(contents), records, zlib.crc32(contents))
    return head + contents


@pytest.fixture
def trace(tmp_path):
    """Packets of one kind: a loop over 100 lines of 64 bytes, with one write."""
    words = []
    packets = 20
    for _ in range(packets):
        words.append(3 << 62 | 1)
        for line in range(LOOP):
            words.append(4 << 56 | 0x400000 + 64 * line)
        words.append(2 << 62 | 8 << 56 | 0x7F0000000000)
        words.append(3 << 62 | 1 << 56 | 1)
    totals = {
        "records": len(words), "instructions": packets * LOOP, "accesses": packets,
        "packets": packets,
    }
    header = {
        "isa": "x86_64", "cpu": "Nehalem", "emulator": "none", "command": ["made", "by", "hand"],
        "whole_run": False, "kinds": ["", "ACK"], "objects": [], "totals": totals,
    }
    records = stored(struct.pack(f"<{len(words)}Q", *words))
    file = b"\x89FLREFS\x01" + section(b"RECS", records, len(words))
    place = len(file)
    file += section(b"HEAD", json.dumps(header).encode(), 0)
    file += struct.pack("<Q", place) + b"FLREFEND"
    path = tmp_path / "T.refs"
    path.write_bytes(file)
    return path


def test_a_sweep_has_arrays_of_what_misses(trace):
    swept = protocol.sweep(
        trace, sizes=["4K", 8192], ways=[1, 4], lines=64, machines=["zen4"], warm_up=4
    )
    misses = swept.misses
    assert isinstance(misses["misses"], np.ndarray)
    warm = (misses["state"] == "warm") & (misses["part"] == "instruction") & (misses["ways"] == 4)
    assert misses["size"][warm].tolist() == [4096, 8192]
    assert misses["misses_per_packet"][warm].tolist() == [LOOP, 0.0]
    assert misses["packets"][warm].tolist() == [16, 16]
    assert swept.packets["instructions"].tolist() == [LOOP]
    assert swept.packets["instruction_lines_64"].tolist() == [LOOP]
    cold = swept.machines["state"] == "cold"
    assert swept.machines["i1_misses"][cold].tolist() == [LOOP]
    assert swept.machines["cycles_mean"][cold][0] > LOOP
    fits = {row["ways"]: row["size"] for row in swept.fits.rows() if row["part"] == "instruction"}
    assert fits == {1: 8192, 4: 8192}
    assert "upper bound" in swept.notes[0]
    named = protocol.sweep(trace, sizes=["4K"], ways=[4], lines=[64], policy="fifo")
    assert set(named.misses["misses_per_packet"][named.misses["part"] == "instruction"]) == {LOOP}
    with pytest.raises(errors.ArgumentError, match="lru, fifo, plru"):
        protocol.sweep(trace, policy="tide")
    assert len(swept.misses.to_pandas()) == len(misses)


def test_plots_are_of_what_was_swept(trace):
    swept = protocol.sweep(trace, machines=["zen4", "r4400-100"])
    drawn = swept.plot_misses(part="data", state="cold")
    assert drawn.lstrip().startswith("<") and "svg" in drawn
    assert swept.plot_clocks(kind="ACK") != drawn
    with pytest.raises(errors.ArgumentError, match="write one of instruction, data"):
        swept.plot_misses(part="both")
    with pytest.raises(errors.MissingError, match="lines of 7 bytes"):
        swept.plot_misses(line=7)
    with pytest.raises(errors.ArgumentError, match="ACK"):
        swept.plot_clocks(kind="SYN")


def test_caches_count_the_whole_trace(trace):
    counts = protocol.caches(trace, i1=("4K", 4, 64))
    assert counts["i1"] == {"references": 20 * LOOP, "misses": 20 * LOOP}
    assert counts["d1"]["writes"] == 20 and counts["d1"]["write_misses"] == 1
    assert counts["ll"]["instruction_misses"] == LOOP
    with pytest.raises(errors.GeometryError, match="power of two"):
        protocol.caches(trace, i1=("5K", 1, 64))
    with pytest.raises(errors.ArgumentError, match="32K"):
        protocol.caches(trace, i1=("many", 4, 64))


def test_layers_without_the_program_are_unknown(trace):
    rows = list(protocol.layers(trace).rows())
    assert [row["layer"] for row in rows] == ["unknown"]
    assert rows[0]["instructions"] == LOOP


def test_foreign_and_cut_files_are_refused(trace, tmp_path):
    other = tmp_path / "other.refs"
    other.write_bytes(b"nothing of this kind")
    with pytest.raises(errors.TraceError, match="other.refs"):
        protocol.sweep(other)
    other.write_bytes(trace.read_bytes()[:-20])
    with pytest.raises(errors.TraceError, match="byte"):
        protocol.sweep(other)
    with pytest.raises(errors.TraceError, match="absent"):
        protocol.layers(tmp_path / "absent")
