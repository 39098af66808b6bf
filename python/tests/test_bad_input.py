"""What bad input gets: an error of a class of ours that names the file, the line or the option, and
says what to do. The same cases as in crates/fairlead/tests/lab."""

from __future__ import annotations

import copy
import gzip
import os
import pickle
from pathlib import Path

import pyarrow
import pytest
from conftest import ROOT

import fairlead_lab as lab
from fairlead_lab import errors

NASA = (ROOT / "tests" / "traces" / "nasa.log").read_bytes()


def packed(by: str) -> bytes:
    if by == "gz":
        return gzip.compress(NASA)
    return pyarrow.compress(NASA, codec="zstd", asbytes=True)


def noise() -> bytes:
    return bytes((at * 2_654_435_761 >> 24) & 255 for at in range(4096))


FILES = [
    ("cut.log.gz", packed("gz")[:900], "cut.log.gz: byte.*fetch it again, it was cut"),
    ("cut.log.zst", packed("zst")[:900], "cut.log.zst: byte.*fetch it again, it was cut"),
    ("junk.log.gz", packed("gz") + b"junk", "junk.log.gz: .*followed by something else"),
    ("noise.log", noise(), "noise.log: a binary file of unknown format.*name the format"),
    (
        "broken.log",
        NASA + b"this is not a request\n" * 60,
        "broken.log: line 121: .*60 of the first 180 rows.*max_bad",
    ),
    ("words.log", b"one\ntwo\n", "words.log: text of unknown format.*csv:time=1,client=2"),
    ("empty.log", b"", "empty.log: it contains no byte; is it the right file"),
    ("blank.log", b"\n\n", "blank.log: only blank lines"),
    ("rowless.csv", b"time_us,ip,port\n", "rowless.csv: it contains no row"),
]


@pytest.mark.parametrize("how", [lab.read_requests, lab.read_accesses, lab.expand_file])
@pytest.mark.parametrize(("name", "content", "said"), FILES, ids=[name for name, *_ in FILES])
def test_files(tmp_path: Path, how, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    if name == "broken.log" and how is lab.read_accesses:
        # Whether lines parse is of no matter in a log without ports.
        said = "broken.log: clf has no client ports; read it as requests"
    with pytest.raises(errors.TraceError, match=said):
        how(path)


def test_a_name_in_an_error_is_no_order_to_a_terminal(tmp_path: Path, command):
    with pytest.raises(errors.TraceError) as caught:
        lab.read_requests(tmp_path / "a\x1b[31m.log")
    assert "a\\u{1b}[31m.log" in str(caught.value)
    (tmp_path / "b\x1b").write_text("")
    (tmp_path / "plan.toml").write_text("[[trace]]\nzipf = { ids = 9, accesses = 9 }\n[[run]]\nscheme = 'mod'\n")
    said = command("sweep", "plan.toml", "--out", "b\x1b", ok=False).stderr
    assert "b\\u{1b}/runs: cannot be written" in said and "\x1b" not in said


def test_time_that_runs_backwards(tmp_path: Path):
    path = tmp_path / "back.csv"
    path.write_text("time_us,ip,port\n9,10.0.0.1,1\n5,10.0.0.2,1\n")
    # As the command does: refused, unless it was said that they may be sorted.
    said = "back.csv: time steps back once, first at row 2.*Python: sort=True"
    for read in (lab.expand_file, lab.read_accesses):
        with pytest.raises(errors.TraceError, match=said):
            read(path)
        stream = read(path, sort=True)
        assert stream.time_us.tolist() == [0, 4] and stream.key_address[stream.id[0]][-1] == 2
        assert stream.provenance["made"]["sort"] is True
    assert lab.read_accesses(path, sort=True).report["stepped_back"] == 1


def test_numbers_that_the_core_has_no_room_for():
    stream = lab.zipf(ids=10, accesses=100)
    for call, said in [
        (lambda: lab.fully_associative(stream, -1), "lines -1"),
        (lambda: lab.fully_associative(stream, 1 << 40), "lines 1099511627776"),
        (lambda: lab.advise(stream, capacities=[-1]), "capacities -1"),
        (lambda: lab.advise(stream, ways=[-2]), "ways -2"),
        (lambda: lab.simulate(stream, "mod", threads=1.5), "threads 1.5"),
    ]:
        with pytest.raises(errors.ArgumentError, match=f"{said}: write a whole number"):
            call()
    with pytest.raises(errors.LabError, match="--ways 3.*power of two"):
        lab.advise(stream, ways=[3])


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"capacity": "33K"}, "33792.*power of two.*write 32768 or 65536"),
        ({"ways": 3}, "ways must be a power of two, not 3: write 2 or 4"),
        ({"line": 48}, "line must be a power of two, not 48: write 32 or 64"),
        ({"capacity": 64}, "64 bytes is less than one set.*at least 512"),
        ({"capacity": 0}, "power of two|one set"),
    ],
)
def test_geometries(run, said):
    stream = lab.zipf(ids=10, accesses=100)
    with pytest.raises(errors.GeometryError, match=said) as caught:
        lab.simulate(stream, {"scheme": "spec", **run})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lab.zipf(ids=2**32, accesses=1), "4294967296.*write a whole number"),
        (lambda: lab.standard(sessions=2**32), "4294967296.*write a whole number"),
        (lambda: lab.standard(sessions=2**32 - 1), "sessions must be 1 to 268435456"),
        (lambda: lab.zipf(ids=2**32 - 1, accesses=9), "ids must be 1 to 268435456"),
    ],
)
def test_two_to_the_32_sessions(make, said):
    with pytest.raises(errors.ArgumentError, match=said):
        make()


@pytest.mark.parametrize("read", [lab.read_requests, lab.read_accesses, lab.expand_file])
def test_what_is_no_file_is_named(read):
    with pytest.raises(errors.TraceError, match="tests: is a directory; name a file in it"):
        read(os.fspath(ROOT / "tests"))
    for given in (None, 5, b"x"):
        with pytest.raises(errors.ArgumentError, match=f"path {given!r}: write a file's name"):
            read(given)


def test_files_to_be_written_and_plans_have_names(tmp_path: Path):
    stream = lab.zipf(ids=10, accesses=100)
    results = lab.simulate(stream, "mod")
    for call, what in [
        (stream.write, "path"), (results.to_parquet, "path"), (results.to_csv, "path"),
        (lambda it: lab.sweep(it, tmp_path), "plan"),
    ]:
        with pytest.raises(errors.ArgumentError, match=f"{what} None: write a file's name"):
            call(None)


def test_what_is_no_stream_and_no_configuration_is_named():
    stream = lab.zipf(ids=10, accesses=100)
    for call in (lab.stat, lab.advise, lambda it: lab.simulate(it, "mod"),
                 lambda it: lab.fully_associative(it, 4)):
        with pytest.raises(errors.ArgumentError, match="Accesses are needed, not str"):
            call("standard:100")
    with pytest.raises(errors.ArgumentError, match="Requests are needed, not Accesses"):
        lab.expand(stream)
    table = pyarrow.table({"scheme": ["mod"]})
    for given in (None, 5, table):
        with pytest.raises(errors.ArgumentError, match="write a scheme's name, a dictionary"):
            lab.simulate(stream, given)
    with pytest.raises(errors.ArgumentError, match="configuration 5: write a scheme's name"):
        lab.simulate(stream, ["mod", 5])
    for make in (lab.standard, lab.zipf):
        with pytest.raises(errors.ArgumentError, match="seed 18446744073709551616"):
            make(10, seed=2**64)


def test_times_that_are_something_else_or_too_far_are_refused():
    import numpy as np
    import pandas

    def times(values):
        return lab.Accesses.from_columns(values, [1, 2], [1, 2]).time_us.tolist()

    # Months since 1970 would be taken for microseconds.
    months = pandas.period_range("2020-01", periods=2, freq="M")
    for values in (months, pandas.Series(months), list(months)):
        with pytest.raises(errors.ArgumentError, match="time_us"):
            times(values)
    assert times(months.to_timestamp()) == [0, 31 * 86_400_000_000]
    # 2⁶⁴ µs and a bit more are that bit in 64 bits.
    with pytest.raises(errors.ArgumentError, match="too far from 1970"):
        times(np.array([0, 18_446_744_073_710], "datetime64[s]"))
    assert times(np.array([-1, 1_999], "datetime64[ns]")) == [0, 2]


def test_what_a_page_lacks_is_named():
    whole = lab.advise(lab.zipf(ids=10, accesses=100), schemes="mod", capacities=4096)
    with pytest.raises(errors.MissingError, match="^advice: there is no 'stream' in it; give what"):
        lab.advice_page({})
    del whole["advised"]["hardware"]
    with pytest.raises(errors.MissingError, match="advice: there is no 'hardware'"):
        lab.advice_page(whole)
    with pytest.raises(errors.MissingError, match="report: there is no 'figures'"):
        lab.paper_page({})
    for page, what in ((lab.advice_page, "advice"), (lab.paper_page, "report")):
        for given in (None, 5, "x", []):
            with pytest.raises(errors.ArgumentError, match=f"^{what}: give what"):
                page(given)


def test_times_with_and_without_a_zone_are_not_mixed():
    import datetime

    import pandas

    bare = datetime.datetime(1970, 1, 1, 2)
    zone = datetime.timezone(datetime.timedelta(hours=2))

    def times(*values):
        rows = [1] * len(values)
        return lab.Requests.from_columns(values, rows).time_us.tolist()

    hour = 3_600_000_000
    assert times(bare, bare) == [2 * hour] * 2
    utc = bare.replace(tzinfo=datetime.timezone.utc)
    assert times(bare.replace(tzinfo=zone), utc) == [0, 2 * hour]
    mixed = [bare, bare.replace(tzinfo=zone)]
    for values in (mixed, mixed[::-1], pandas.Series(mixed, dtype=object)):
        with pytest.raises(errors.ArgumentError, match="time_us: some times have a zone and some"):
            lab.Requests.from_columns(values, [1, 1])


def test_a_column_that_is_there_twice_is_named():
    table = pyarrow.table([[1], ["10.0.0.1"], [1], [2]], ["time_us", "ip", "port", "port"])
    with pytest.raises(errors.ArgumentError, match="several columns port"):
        lab.Accesses.from_table(table)


def test_columns_of_which_no_library_knows_are_an_error_of_ours():
    import pandas
    import polars

    three = ["10.0.0.1"] * 3
    tables = pandas.DataFrame({"a": [1, 2, 3]}), polars.DataFrame({"a": [1, 2, 3]})
    for times in (None, 5, (n for n in range(3)), [[1], [2, 3]], *tables,
                  polars.Series([1, 2, 3], dtype=polars.Int128)):
        with pytest.raises(errors.ArgumentError, match="time_us: .* needed, not"):
            lab.Accesses.from_columns(times, three, [1, 2, 3])
    for ip in (None, 5, (text for text in three), set(three), [three], [[text] for text in three],
               pyarrow.array([{"a": 1}] * 3), ["10.0.0.\udc80"] * 3, tables[0]):
        with pytest.raises(errors.ArgumentError, match="^ip: "):
            lab.Accesses.from_columns([1, 2, 3], ip, [1, 1, 1])
    with pytest.raises(errors.ArgumentError, match="table: .*needed, not Series"):
        lab.Accesses.from_table(pandas.Series([1, 2, 3]))


def test_arguments_of_another_kind_are_an_error_of_ours(tmp_path: Path):
    stream = lab.zipf(ids=10, accesses=100)
    nasa = ROOT / "tests" / "traces" / "nasa.log"
    for call, said in [
        (lambda: lab.advise(stream, tolerance="x"), "tolerance 'x': write a share"),
        (lambda: lab.advise(stream, schemes=5), "schemes 5: write text"),
        (lambda: lab.advise(stream, schemes=[5]), "schemes 5: write text"),
        (lambda: lab.advise(stream, ways=4.5), "ways 4.5: write one, or a list"),
        (lambda: lab.fully_associative(stream, 4, [5]), "policies 5: write text"),
        (lambda: lab.simulate(stream, "mod", progress=5), "progress 5: write a function"),
        (lambda: lab.paper(None), "traces None: write one, or a list"),
        (lambda: lab.paper([5]), "traces 5: write a file's name"),
        (lambda: lab.write_paper(nasa, None), "out None: write a file's name"),
        (lambda: lab.read_requests("a\0b"), "path .*: write a file's name"),
        (lambda: lab.expand_file("\udc80.log"), "not UTF-8"),
        (lambda: pickle.dumps(stream), "Accesses cannot be pickled: make them in each process"),
        *(
            (lambda read=read, given=given: read(nasa, **given), said)
            for read in (lab.read_requests, lab.read_accesses, lab.expand_file)
            for given, said in (
                ({"format": 5}, "format 5: write text"),
                ({"max_bad": None}, "max_bad None: write a share"),
                ({"progress": "x"}, "progress 'x': write a function"),
            )
        ),
    ]:
        with pytest.raises(errors.ArgumentError, match=said):
            call()
    # One stands for itself, and nobody can change what is copied.
    assert lab.advise(stream, ways=4, capacities=1 << 14)["advised"]["run"]["ways"] == 4
    assert copy.deepcopy(stream).id.ctypes.data == stream.id.ctypes.data
    # A name is one trace, not its letters.
    with pytest.raises(errors.TraceError, match="^/nowhere: "):
        lab.paper("/nowhere")
