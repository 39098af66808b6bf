"""Tables, files and pages."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from fairlead_lab import ArgumentError, Frame, LabError, plots
from fairlead_lab.files import write_text, write_whole
from fairlead_lab.page import Page
from fairlead_lab.paper import write_tables
from fairlead_lab.terminal import Progress
from fairlead_lab.words import points


def test_a_frame_is_taken_by_others_and_shown():
    frame = Frame.of_rows([{"a": 1, "b": "x"}, {"a": 2, "c": 0.25}])
    assert frame.columns == ["a", "b", "c"] and len(frame) == 2
    assert frame.to_pandas()["c"].tolist()[1] == 0.25
    assert frame.to_polars()["a"].to_list() == [1, 2]
    assert "<td>0.25</td>" in frame._repr_html_() and "0.25" in repr(frame)
    assert "<b>" not in Frame({"<b>": [1]})._repr_html_()
    for kind in (KeyError, LabError):
        with pytest.raises(kind, match="^no column 'd'; there are a, b, c$"):
            frame["d"]
    with pytest.raises(ArgumentError, match="different lengths"):
        Frame({"a": [1], "b": []})
    assert "1,000 rows" in repr(Frame({"n": np.arange(1000)}))


def test_tables_of_figures_have_the_same_columns_whatever_they_lack(tmp_path):
    row = {"trace": "a", "synthetic": False, "series": "b", "x": "c", "ours": 1.0, "fitted": False}
    rows = {"full": [{**row, "published": 1.0, "error": 0.0, "spread": 0.5}], "part": [row], "none": []}
    figures = [{"id": name, "rows": rows, "claims": []} for name, rows in rows.items()]
    write_tables({"figures": figures, "traces": []}, tmp_path)
    schemas = [pyarrow.parquet.read_schema(tmp_path / f"{name}.parquet") for name in rows]
    assert schemas[0] == schemas[1] == schemas[2]
    assert (tmp_path / "part.csv").read_text().splitlines()[1] == '"a",false,"b","c",1,,,,false'


def test_files_are_whole_or_not_there(tmp_path):
    frame = Frame({"a": [1, 2], "nested": [{"x": 1}, {"x": 2}]})
    frame.to_parquet(tmp_path / "deep" / "a.parquet")
    frame.to_csv(tmp_path / "a.csv")
    assert pyarrow.parquet.read_table(tmp_path / "deep" / "a.parquet")["a"].to_pylist() == [1, 2]
    assert '{""x"": 1}' in (tmp_path / "a.csv").read_text()

    def fail(to):
        Path(to).write_text("half")
        raise OSError("no space")

    with pytest.raises(LabError, match="a.csv: cannot be written: no space"):
        write_whole(tmp_path / "a.csv", fail)
    assert '{""x"": 1}' in (tmp_path / "a.csv").read_text()
    assert not list(tmp_path.glob(".*.part"))


def test_control_characters_are_shown_and_not_obeyed():
    page = Page("a\x1b[31m")
    page.text("b\x07\n")
    page.table(["c\x9b"], [["d\x00"]])
    shown = page.html()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert all(said in shown for said in ("a\\u{1b}[31m", "b\\u{7}", "c\\u{9b}", "d\\u{0}"))


def test_links_stay_links_and_pipes_stay_pipes(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    (tmp_path / "old").write_text("old")
    link.symlink_to("old")
    write_text("new", link)
    assert link.is_symlink() and (tmp_path / "old").read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text("through", pipe)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("write", [Frame.to_parquet, Frame.to_csv])
def test_a_pipe_whose_reader_has_gone_is_not_removed(tmp_path, write):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    reading = threading.Timer(0.3, os.close, [reader])
    reading.start()
    with pytest.raises(LabError, match="pipe: cannot be written"):
        # More than a pipe holds.
        write(Frame({"n": np.random.default_rng(1).random(100_000)}), pipe)
    reading.join()
    assert pipe.is_fifo()


def test_standard_output_can_be_written_by_its_name(tmp_path):
    code = "import sys; from fairlead_lab import Frame; Frame({'a': [1]}).to_csv(sys.argv[1])"
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        # A pipe, and a file that is open already, which is not to be put aside.
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, '"a"\n1\n'), done.stderr
        with (tmp_path / "out").open("w+") as out:
            subprocess.run([sys.executable, "-c", code, name], stdout=out, check=True)
            out.seek(0)
            assert out.read() == '"a"\n1\n'


def test_progress_shows_nothing_where_there_is_no_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    quiet, loud = io.StringIO(), Terminal()
    for stream in (quiet, loud):
        with Progress("sweep", stream) as progress:
            progress.drawn = -1e9
            progress(5, 10)
    assert quiet.getvalue() == ""
    assert "50%" in loud.getvalue() and loud.getvalue().endswith("\r")


class Checker(HTMLParser):
    """Finds elements that are not closed, and everything that would be fetched."""

    VOID = {"meta", "br", "link", "img", "path", "use"}

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched = [], [], []

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.ids += [names["id"]] if "id" in names else []
        self.fetched += [
            v for n, v in attributes if n in ("src", "href", "xlink:href") and not v.startswith("#")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert not checker.open and not checker.fetched
    assert len(checker.ids) == len(set(checker.ids)), "ids are unique"
    return checker


def test_a_page_stands_alone_and_escapes_what_it_is_given():
    page = Page("A & B", "lead <script>")
    page.section("One")
    page.table(["t<", "n"], [["x<y", "1.5 %"], ["z", None]], marks={(0, 1): "good"}, folded="more")
    page.section("Two")
    page.figure(plots.bars(["a", "b c d e f g h i j k"], {"p": [0.1, None], "q": [1, 2]}, "y", "B"))
    page.figure(plots.lines({"a": ([1, 2, 4], [3, 2, 1])}, "x", "y", "L", logx=True, mark=(2, 2, "!")))
    page.figure(plots.heat(["1"], ["a", "b"], [[0.1, None]], "x", "y", "H"))
    page.section("Three")
    page.call("Do this", "because")
    text = page.html(footer="made by hand")
    checked(text)
    # One script, of its own: what is folded is printed, too.
    assert text.count("<script>") == 1 and "beforeprint" in text and "&lt;script&gt;" in text
    assert '<th scope="col"' in text and "<th></th>" not in text and "x&lt;y" in text and 'class="good"' in text
    assert len(re.findall("<svg", text)) == 3 and "http-equiv" not in text


def test_names_are_no_formulas_and_all_are_in_the_legend():
    names = ["a$_$b.log", "_hidden.log", "c$^$"]
    shown = [
        plots.bars(names, {name: [0.1, 0.2, 0.3] for name in names}, "y", "B"),
        plots.heat(names, names, [[0.1, 0.2, 0.3]] * 3, "x", "y", "H"),
        plots.lines(
            {name: ([1, 2], [3, 4]) for name in names}, "x", "y", "L", logx=True, mark=(1, 3, names[0])
        ),
    ]
    # Every text is drawn under a comment with its words.
    texts = [re.findall("<!-- (.*?) -->", svg) for svg in shown]
    for words in texts[:2]:
        assert [words.count(name) for name in names] == [2, 2, 2]
    assert [texts[2].count(name) for name in names] == [2, 1, 1]
    assert any("2^{1}" in word for word in texts[2]), "powers of a log axis are formulas"


def test_bars_say_what_their_groups_and_series_are():
    svg = plots.bars(["8", "16"], {"a": [1, 2], "b": [2, 1]}, "y", "B", xlabel="bits", legend="trace")
    words = re.findall("<!-- (.*?) -->", svg)
    assert "bits" in words and "trace" in words and "y" in words


def test_what_is_rounded_away_has_no_sign():
    assert [points(value) for value in (-0.0003, 0.0, 0.012, -0.0005001, None)] == [
        "0.0", "0.0", "+1.2", "-0.1", "–"
    ]


def test_plots_are_the_same_each_time():
    one, two = (plots.bars(["a"], {"p": [0.1]}, "y", "same") for _ in range(2))
    assert one == two
