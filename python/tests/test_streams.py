"""Columns in and out: lists, numpy, pandas, polars, Arrow."""

from __future__ import annotations

import datetime
import ipaddress
import resource
import signal

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import fairlead_lab as lab
from fairlead_lab import Accesses, ArgumentError, LabError, Requests, TraceError, read_accesses

ROWS = {
    "time_us": [20, 10, 30, 10],
    "ip": ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "192.0.2.1"],
    "port": [5, 6, 5, 7],
}


@pytest.mark.parametrize("table", [dict, pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_tables_of_all_kinds_give_the_same_accesses(table):
    accesses = Accesses.from_table(table(ROWS))
    assert len(accesses) == 4 and accesses.sessions == 3
    assert accesses.time_us.tolist() == [0, 0, 10, 20]
    keys = [
        (bytes(accesses.key_address[i])[-4:].hex(), int(accesses.key_port[i])) for i in accesses.id
    ]
    assert keys == [("00000001", 6), ("c0000201", 7), ("c0000201", 5), ("c0000201", 5)]


def test_addresses_may_be_numbers_and_times_may_be_stamps():
    stamps = np.array(["2024-01-01T00:00:01", "2024-01-01T00:00:00.25"], "datetime64[ns]")
    accesses = Accesses.from_columns(stamps, np.array([0xC0000201, 1], "int64"), [1, 1])
    assert accesses.time_us.tolist() == [0, 750_000]
    assert bytes(accesses.key_address[accesses.id[1]])[-4:] == bytes([192, 0, 2, 1])
    series = pandas.Series(stamps)
    assert Accesses.from_columns(series, [1, 2], [1, 1]).time_us.tolist() == [0, 750_000]


def test_out_again_without_a_copy():
    accesses = Accesses.from_table(ROWS)
    table = pyarrow.table(accesses)
    assert table.column_names == ["time_us", "id"]
    assert table["id"].chunk(0).buffers()[1].address == accesses.id.ctypes.data
    assert accesses.to_pandas()["time_us"].tolist() == [0, 0, 10, 20]
    assert polars.DataFrame(accesses)["id"].to_list() == accesses.id.tolist()
    requests = Requests.from_table(ROWS)
    assert requests.to_polars()["status"].to_list() == [0] * 4
    assert "4 rows" in repr(requests) and "3 sessions" in repr(accesses)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"port": [5, 6, 5, 65_536]}, "port.*65536.*do not fit"),
        ({"port": [5, -1, 5, 7]}, "port.*do not fit"),
        ({"port": [5, 6.5, 5, 7]}, "fraction"),
        ({"port": [5, None, 5, 7]}, "port"),
        ({"port": [5, 6, 5]}, "different lengths"),
        ({"port": ["a"] * 4}, "whole numbers"),
        ({"ip": ["192.0.2.256"] * 4}, "'192.0.2.256' is no address"),
        ({"ip": ["192.0.2.1", None] * 2}, "missing"),
        ({"time_us": np.array([1, np.nan, 2, 3])}, "fraction|missing"),
        ({"hint": [0, 1, 2, 3]}, "nothing above 2"),
        ({"time_us": [-(2**62), 0, 1, 2]}, "time_us -4611686018427387904: write microseconds"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(change, said):
    with pytest.raises(ArgumentError, match=said):
        Accesses.from_table({**ROWS, **change})


def test_a_missing_column_is_named():
    with pytest.raises(ArgumentError, match="no column port; it has time_us, ip"):
        Accesses.from_table({"time_us": [1], "ip": ["1.1.1.1"]})
    with pytest.raises(ArgumentError, match="a table is needed"):
        Accesses.from_table(7)


@pytest.mark.parametrize("format", ["lab", "oracleGeneral"])
def test_written_accesses_are_read_back(tmp_path, format):
    accesses = Accesses.from_columns(
        np.arange(1000) * 1_000_000, np.arange(1000) % 37, np.arange(1000) % 3
    )
    path = tmp_path / f"x.{format}"
    accesses.write(path, format)
    again = read_accesses(path)
    assert again.report["format"] == format and again.report["rows"] == 1000
    assert again.time_us.tolist() == accesses.time_us.tolist()
    before = [(bytes(accesses.key_address[i]), accesses.key_port[i]) for i in accesses.id]
    after = [(bytes(again.key_address[i]), again.key_port[i]) for i in again.id]
    assert before == after


def test_files_that_cannot_be_read_name_themselves(tmp_path):
    with pytest.raises(TraceError, match="nowhere.csv"):
        read_accesses(tmp_path / "nowhere.csv")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    with pytest.raises(TraceError, match="empty.csv"):
        read_accesses(empty)
    cut = tmp_path / "cut.csv"
    cut.write_text("time_us,ip,port\n1,10.0.0.1,7\nwhat,is,this\n")
    with pytest.raises(LabError, match=r"cut.csv: line 3: .*1 of the first 2"):
        read_accesses(cut)
    assert len(read_accesses(cut, max_bad=0.5)) == 1
    with pytest.raises(ArgumentError, match="max_bad"):
        read_accesses(cut, max_bad=2)
    # What the message about them advises, everywhere; ticks can be chosen as for `expand`.
    assert len(lab.expand_file(cut, max_bad=0.5)) == 1
    made = lab.expand_file(cut, max_bad=0.5, tick_ms=100).provenance["made"]
    assert (made["max_bad"], made["tick_ms"]) == (0.5, 100)
    with pytest.raises(ArgumentError, match="format"):
        read_accesses(cut, format="excel")


def test_what_reading_left_out_is_in_every_provenance(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("time_us,ip,port\n3,10.0.0.1,7\nwhat,is,this\n" + "9,10.0.0.2,7\n" * 200)
    read, expanded = read_accesses(path), lab.expand_file(path)
    log = lab.expand(lab.read_requests(path, format="csv:time=1,client=2,unit=us,header=yes"))
    for stream in (read, expanded, log):
        [note] = stream.provenance["notes"]
        assert note.startswith("1 of 202 rows could not be read"), note
        assert stream.report["rows"] == 201 and stream.report["first_bad"][0] == 3
    assert lab.zipf(ids=10, accesses=100).report is None
    with path.open("a") as out:
        out.write("8,10.0.0.2,7\n")
    sorted_rows = read_accesses(path, sort=True).provenance["notes"]
    assert any("time steps back once" in note for note in sorted_rows)


def test_addresses_of_other_kinds():
    texts = ["192.0.2.1", "2001:db8::1", "192.0.2.1"]
    given = {"time_us": [0, 1, 2], "ip": [ipaddress.ip_address(text) for text in texts], "port": [1, 1, 1]}
    stream = lab.Accesses.from_table(given)
    assert stream.sessions == 2 and stream.id[0] == stream.id[2]
    with pytest.raises(ArgumentError, match="is no address"):
        lab.Accesses.from_table({**given, "ip": [ipaddress.ip_address("192.0.2.1"), "x", "y"]})


def test_values_under_a_mask_are_missing():
    ports = np.ma.masked_array([1, 2, 3], mask=[False, True, False])
    columns = {"time_us": [0, 1, 2], "ip": ["192.0.2.1"] * 3}
    with pytest.raises(ArgumentError, match="port: 1 values are missing"):
        lab.Accesses.from_table({**columns, "port": ports})
    none = np.ma.masked_array([1, 2, 3])
    assert lab.Accesses.from_table({**columns, "port": none}).key_port.tolist() == [1, 2, 3]


def test_a_lazy_frame_is_collected():
    polars = pytest.importorskip("polars")
    frame = polars.LazyFrame({"time_us": [0, 1], "ip": ["192.0.2.1"] * 2, "port": [1, 2]})
    assert lab.Accesses.from_table(frame).sessions == 2


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.lab"
    path.write_bytes(b"old")
    stream = lab.zipf(ids=10, accesses=100)
    with pytest.raises(ArgumentError, match="write lab or oracleGeneral"):
        stream.write(path, "csv")
    # No file may be longer than this.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(LabError, match="/a.lab: cannot be written: File too large"):
            stream.write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, kept)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1
    stream.write(path)
    assert len(lab.read_accesses(path)) == 100


def test_objects_of_python_are_times_and_numbers():
    stamps = [datetime.datetime(2020, 1, 1, 0, 0, second) for second in (0, 1, 2)]
    zoned = pandas.DatetimeIndex(stamps).tz_localize("Europe/Berlin")
    for times in (stamps, zoned, np.array([0, 1_000_000, 2_000_000], object)):
        accesses = Accesses.from_columns(times, ["192.0.2.1"] * 3, np.array([1, 1, 1], object))
        assert accesses.time_us.tolist() == [0, 1_000_000, 2_000_000]
        assert accesses.sessions == 1
    with pytest.raises(ArgumentError, match="time_us: 1 values are missing"):
        Accesses.from_columns([0, None, 2], ["192.0.2.1"] * 3, [1, 1, 1])


def test_whole_numbers_are_taken_as_they_are():
    # On both sides of 2⁶³, where numpy makes floats of a list.
    large = [2**64 - 2, 5, 2**63 + 1]
    columns = {"time_us": [0, 1, 2], "ip": ["192.0.2.1"] * 3}
    for objects in (
        large, tuple(large), [np.uint64(large[0]), 5, large[2]], np.array(large, object),
        pandas.Series(large, dtype=object), pandas.Series(large, dtype="uint64"),
    ):
        assert Requests.from_table({**columns, "object": objects}).object.tolist() == large
    for wrong in ([2**64, 5, 6], [2**63, -1, 0], pandas.Series([2**64, 5, 6], dtype=object)):
        with pytest.raises(ArgumentError, match="object: values from .* do not fit uint64"):
            Requests.from_table({**columns, "object": wrong})


def test_addresses_are_not_taken_for_others():
    def octets(values):
        requests = Requests.from_columns([0] * len(values), values)
        return [requests.client_address[client].tobytes() for client in requests.client]

    texts = ["2001:db8::1:2:33", "2001:db8::1:2:34"]
    expected = [ipaddress.ip_address(text).packed for text in texts]
    assert octets(np.array(texts)) == octets(np.array(texts, "S")) == expected
    assert octets(pyarrow.array([1, 2]))[1].endswith(b"\xff\xff\0\0\0\x02")
    for numbers in (pyarrow.array([1, 2**33]), ["192.0.2.1", 2**33]):
        with pytest.raises(ArgumentError, match="8589934592 is no address"):
            octets(numbers)
    # Of the categories only those that a row has.
    kinds = pandas.Series([*texts, "nothing"]).astype("category")
    assert octets(kinds[:2]) == expected
    with pytest.raises(ArgumentError, match="'nothing' is no address"):
        octets(kinds)


def test_the_end_of_a_name_says_the_format(tmp_path):
    # Of whole seconds and without hints: the format holds all of it.
    accesses = Accesses.from_columns([0, 1_000_000] * 50, ["192.0.2.1"] * 100, [1] * 100)
    accesses.write(tmp_path / "a.oracleGeneral")
    assert (tmp_path / "a.oracleGeneral").stat().st_size == 24 * 100
    accesses.write(tmp_path / "a.lab")
    accesses.write(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "a.lab").read_bytes()
    with pytest.raises(ArgumentError, match="a.csv: write does not make tables.*convert"):
        accesses.write(tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


def test_what_a_format_does_not_hold_is_warned_of(tmp_path):
    accesses = Accesses.from_columns([0, 3], ["192.0.2.1", "2001:db9::1"], [1, 1], hint=[2, 0])
    with pytest.warns(UserWarning) as warned:
        accesses.write(tmp_path / "a.oracleGeneral")
    said = [str(one.message) for one in warned]
    assert len(said) == 3 and warned[0].filename == __file__
    assert "1 of 2 accesses are truncated" in said[0] and "1 of 2 sessions have IPv6" in said[1]
    assert "open and close connections; 1 of 2 do" in said[2]
    accesses.write(tmp_path / "a.lab")


def test_a_file_that_does_not_hold_the_warm_up_is_warned_of(tmp_path):
    stream = lab.standard(sessions=50, seconds=5, warm_up_s=5)
    assert stream.warm_up > 0
    for name in ("a.lab", "a.oracleGeneral"):
        with pytest.warns(UserWarning) as warned:
            stream.write(tmp_path / name)
        said = str(warned[-1].message)
        assert said.startswith(f"the first {stream.warm_up:,} accesses are warm-up"), said


def test_the_end_of_a_name_says_the_format_as_for_the_command(tmp_path):
    stream = Accesses.from_columns(np.arange(5) * 1_000_000, [1] * 5, [1] * 5)
    for name, format in [
        ("a.oracleGeneral", "oracleGeneral"), ("b.ORACLEGENERAL", "oracleGeneral"),
        ("c.oracleGeneral.bin", "oracleGeneral"), ("d.lab", "lab"), ("e", "lab"),
    ]:
        stream.write(tmp_path / name)
        assert read_accesses(tmp_path / name).report["format"] == format, name
    for name in ("a.CSV", "a.lab.gz", "a.zst"):
        with pytest.raises(ArgumentError, match="write does not"):
            stream.write(tmp_path / name)


LOG = """\
10.0.0.1 - - [26/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5
10.0.0.2:40001 - - [26/Nov/2026:10:00:01 +0000] "GET /a HTTP/1.1" 304 -
10.0.0.3 - - [26/Nov/2026:10:00:02 +0000] "GET /a HTTP/1.1" 200 7
"""


def test_sizes_that_a_log_does_not_say_are_null_in_tables(tmp_path):
    (tmp_path / "sizes.log").write_text(LOG)
    log = lab.read_requests(tmp_path / "sizes.log")
    assert log.bytes.tolist() == [5, 2**64 - 1, 7] and log.port.tolist() == [0, 40001, 0]
    assert log.to_arrow()["bytes"].to_pylist() == [5, None, 7]
    assert log.to_polars()["bytes"].to_list() == [5, None, 7]
    assert [row["bytes"] for row in log.to_frame().rows()] == [5, None, 7]
    sizes = log.to_pandas()["bytes"]
    assert sizes.isna().tolist() == [False, True, False] and sizes.sum() == 12
    log.to_frame().to_csv(tmp_path / "sizes.csv")
    assert (tmp_path / "sizes.csv").read_text().splitlines()[2].split(",")[3] == ""


@pytest.mark.parametrize(
    "sizes",
    [
        [5, None, 7, 2**63],
        np.ma.MaskedArray(np.array([5, 0, 7, 2**63], "uint64"), [False, True, False, False]),
        pyarrow.array([5, None, 7, 2**63], pyarrow.uint64()),
        pyarrow.chunked_array([[5, None], [7, 2**63]], pyarrow.uint64()),
        polars.Series([5, None, 7, 2**63], dtype=polars.UInt64),
        pandas.Series([5, None, 7, 2**63], dtype="UInt64"),
        np.array([5, np.nan, 7, 2**63]),
        pandas.Series([5, np.nan, 7, 2**63]),
    ],
)
def test_a_missing_size_is_an_unknown_one(sizes):
    log = Requests.from_columns(ROWS["time_us"], ROWS["ip"], bytes=sizes)
    assert log.bytes.tolist() == [5, 2**64 - 1, 7, 2**63]
    again = Requests.from_columns(ROWS["time_us"], ROWS["ip"], bytes=log.to_arrow()["bytes"])
    assert again.bytes.tolist() == log.bytes.tolist()
    with pytest.raises(ArgumentError, match="port: "):
        Requests.from_columns(ROWS["time_us"], ROWS["ip"], port=[1, None, 2, 3])
