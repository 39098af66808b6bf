"""The command, as a user types it; the report, end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import ROOT, SOON_S
from test_output import checked

import fairlead_lab as lab
import fairlead_lab.commands
from fairlead_lab import _core


def test_one_run_as_json(command):
    words = ["standard:sessions=500,seconds=10", "--scheme", "spec", "--capacity", "16K"]
    said = json.loads(command("tcb", *words, "--json").stdout)
    wanted = {"accesses", "misses", "miss_ratio", "cold_misses", "migrations", "second_lookup_hits"}
    assert wanted <= set(said) and {"lru", "min"} <= set(said["bounds"])
    stream = lab.standard(sessions=500, seconds=10)
    assert lab.simulate(stream, {"scheme": "spec", "capacity": "16K"})["misses"] == [said["misses"]]


def test_names_of_files_need_not_be_unicode(command, tmp_path):
    name = os.fsdecode(b"na\xffsa.log")
    trace = tmp_path / name
    trace.write_bytes((ROOT / "tests/traces/nasa.log").read_bytes())
    assert "na\ufffdsa.log: " in command("tcb", str(trace)).stdout
    assert len(lab.read_requests(trace)) > 0
    command("paper", str(trace), "--quick", "--out", str(tmp_path / "report"))
    assert "na\ufffdsa.log" in (tmp_path / "report/paper.html").read_text()
    # The runs of a plan are tasks in JSON, and say so.
    plan = tmp_path / "plan.toml"
    plan.write_text('[[trace]]\npath = "trace.log"\n[[run]]\nscheme = "mod"\n')
    inner = tmp_path / os.fsdecode(b"fol\xe9der")
    inner.mkdir()
    plan.rename(inner / "plan.toml")
    (inner / "trace.log").write_bytes(trace.read_bytes())
    refused = command("sweep", str(inner / "plan.toml"), ok=False)
    said = refused.stderr
    assert refused.returncode == 1
    assert "fol\ufffdder/trace.log: its name is not UTF-8" in said and "Traceback" not in said


def test_the_package_brings_its_command():
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("fairlead-lab")
    except PackageNotFoundError:
        pytest.skip("run from the checkout, not installed")
    assert found.version == lab.__version__
    commands = [one for one in found.entry_points if one.name == "fairlead-lab"]
    assert commands[0].load() is fairlead_lab.commands.entry


def test_help_tells_all_commands(command):
    text = command().stdout
    for name in ("stat", "tcb", "sweep", "map", "advise", "schemes", "convert", "generate", "paper"):
        assert f"\n  {name}" in text
    assert "--scheduler" in command("sweep", "--help").stdout
    assert command("help", "sweep").stdout == command("sweep", "--help").stdout
    assert "--html" in command("advise", "--help").stdout
    assert lab.__version__ in command("--version").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tcb", "nowhere.log"], 1, "nowhere.log"),
        (["tcb", "standard:10", "--scheme", "best"], 2, "best"),
        (["tcb", "standard:10", "--capacity", "1000"], 2, "1000"),
        (["sweep", "nowhere.toml"], 1, "nowhere.toml"),
        (["paper", "nowhere"], 1, "nowhere"),
        (["advise", "standard:10", "--html", "a.html", "--json"], 2, "--html and --json"),
        (["advise", "nowhere.log", "--html", "a.html"], 1, "nowhere.log"),
        (["nonsense"], 2, "nonsense"),
        (["advise", "zipf:ids=9,accesses=99", "--html", "/dev/null/a.html"], 1, "/dev/null"),
        (["paper", "--out", "/dev/null/report"], 1, "/dev/null"),
        (["paper", "--threads", "-1"], 2, "threads -1"),
        (["paper", "--seed", "99999999999999999999999"], 2, "seed 9999"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(command, words, code, said):
    done = command(*words, ok=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and "Traceback" not in done.stderr and "panicked" not in done.stderr
    assert "\r" not in done.stderr, "no progress where there is no terminal"


def test_a_sweep_from_the_command_line(command, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("[[trace]]\nstandard = { sessions = 100, seconds = 2 }\n[[run]]\nscheme = 'mod'\n")
    assert "1 runs over 1 streams" in command("sweep", plan, "--dry-run").stdout
    assert "1 computed" in command("sweep", plan).stdout
    assert "1 found, 0 computed" in command("sweep", plan).stdout
    assert "1 found, 0 computed" in command("-q", "sweep", plan).stdout
    assert pyarrow.parquet.read_table(tmp_path / "plan-results" / "results.parquet").num_rows == 1


def test_advice_is_a_page(command, tmp_path):
    command("advise", "standard:sessions=600,seconds=10", "--html", "advice.html")
    text = (tmp_path / "advice.html").read_text()
    checked(text)
    assert text.count("<svg") == 1 and "Take " in text and "What more memory would buy" in text


def test_the_paper_on_the_bundled_excerpts(command, tmp_path):
    command("paper", ROOT / "tests" / "traces", "--quick", "--out", "report")
    text = (tmp_path / "report" / "paper.html").read_text()
    checked(text)
    for figure in ("figure-3a", "figure-4", "figure-5", "figure-7", "figure-12", "figure-17"):
        assert f'id="{figure}"' in text
        table = pyarrow.parquet.read_table(tmp_path / "report" / "tables" / f"{figure}.parquet")
        lines = (tmp_path / "report" / "tables" / f"{figure}.csv").read_text().splitlines()
        assert table.num_rows == len(lines) - 1 > 0
    assert text.count("<svg") >= 12
    # Traces that are not at hand are named, and what stands in for them is called synthetic.
    assert "Saskatchewan is missing" in text
    report = json.loads((tmp_path / "report" / "paper.json").read_text())
    claims = [claim for figure in report["figures"] for claim in figure["claims"]]
    unsaid = [claim for claim in claims if claim["holds"] is None]
    assert 0 < len(unsaid) < len(claims) and text.count(">cannot be said<") == len(unsaid)
    figure = next(figure for figure in report["figures"] if figure["id"] == "figure-12")
    for row in figure["rows"]:
        if row.get("published") is not None:
            assert row["error"] == pytest.approx(row["ours"] - row["published"])
    assert {row["synthetic"] for row in figure["rows"]} == {True, False}
    nasa = [row for row in figure["rows"] if row["trace"] == "nasa.log" and row["x"] == "spec"]
    assert nasa[0]["published"] == 0.26 and not nasa[0]["fitted"]


def test_a_trace_that_fails_does_not_take_the_others_along(command, tmp_path):
    log = ROOT / "tests" / "traces" / "combined.log"
    broken = tmp_path / "broken.log"
    broken.write_bytes(log.read_bytes() + b"no row\n" * 60)
    done = command("paper", broken, log, "--quick", "--out", "report", ok=False)
    assert done.returncode == 1 and "broken.log: line" in done.stderr, done.stderr
    report = json.loads((tmp_path / "report" / "paper.json").read_text())
    assert [failure["trace"] for failure in report["failed"]] == ["broken.log"]
    page = (tmp_path / "report" / "paper.html").read_text()
    checked(page)
    assert "Could not be run" in page and "more than the 1 %" in page
    wrong = command("paper", log, "--max-bad", "2", "--out", "report", ok=False)
    assert wrong.returncode == 2 and "max_bad 2: write a share from 0 to 1" in wrong.stderr


def test_ctrl_c_ends_a_command_of_the_core_within_a_second(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-m", "fairlead_lab", "map", "--seeds", "1,2,3,4,5,6,7,8,9"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    time.sleep(3)
    assert child.poll() is None, child.communicate()
    begun = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert time.monotonic() - begun < SOON_S
    assert child.returncode == 130 and "Traceback" not in said


def test_the_stub_names_what_the_core_has():
    stub = (ROOT / "python" / "fairlead_lab" / "_core.pyi").read_text()
    names = {name for name in dir(_core) if not name.startswith("__")}
    assert names and all(f"def {name}(" in stub or f"class {name}:" in stub for name in names)


def test_a_terminal_without_the_letters_is_told_all_the_same(tmp_path):
    script = str(Path(sys.executable).with_name("fairlead-lab"))
    narrow = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "LC_ALL": "C"}

    def run(*words: str) -> bytes:
        done = subprocess.run(
            [script, *words], cwd=tmp_path, env=narrow, capture_output=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert b"tcp://..." in run("--help") and b"tcp://..." in run("sweep", "--help")
    trace = tmp_path / "\u65e5.csv"
    trace.write_text("time_us,ip,port\n" + "".join(f"{at},10.0.0.{at},1\n" for at in range(200)))
    # In the locale C a name is bytes.
    assert rb"\udce6\udc97\udca5.html" in run("advise", trace.name, "--html", "\u65e5.html")
    assert "\u65e5.csv" in (tmp_path / "\u65e5.html").read_text(encoding="utf-8")


def test_modules_in_the_folder_are_not_the_commands(command, tmp_path):
    for name in ("json.py", "fairlead_lab.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    script = str(Path(sys.executable).with_name("fairlead-lab"))
    words = ["advise", "zipf:ids=9,accesses=99", "--html", "a.html"]
    done = subprocess.run([script, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and (tmp_path / "a.html").exists(), done.stderr


def test_fewer_bits_are_advised_only_where_there_are_more(command):
    words = ["advise", "standard:sessions=600,seconds=10", "--capacities", "16K", "--schemes"]
    assert "2-universal,bits=16 they take a third" in command(*words, "2-universal").stdout
    said = command(*words, "2-universal,bits=16").stdout
    assert "hash functions of 16 bits" in said and "a third" not in said
