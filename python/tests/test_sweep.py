"""Sweeps: resumed after a kill, the same on workers elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pyarrow.parquet
import pytest
from conftest import SOON_S

import fairlead_lab as lab
from fairlead_lab import errors
from fairlead_lab.store import Store
from fairlead_lab.sweep import Task, _named, perform, sweep, tasks_of

PLAN = """
seeds = 2
bounds = true
[[trace]]
path = "trace.csv"
[[trace]]
standard = {{ sessions = [200, 400], seconds = 5 }}
[[run]]
scheme = ["mod", "spec"]
capacity = {capacities}
"""


@pytest.fixture
def plan(tmp_path, burst_columns):
    """6 streams × 4 configurations over a trace in a file and generated ones."""
    columns = [burst_columns[name] for name in ("time_us", "ip", "port")]
    lines = ["time_us,ip,port", *(f"{t},{a},{p}" for t, a, p in zip(*columns))]
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(capacities='["4K", "8K"]'))
    return path


def test_a_plan_is_run_once(plan, tmp_path):
    out = tmp_path / "out"
    first = sweep(plan, out)
    assert (first.planned, first.found, first.computed, first.failed) == (24, 0, 24, [])
    table = pyarrow.parquet.read_table(out / "results.parquet")
    assert table.num_rows == 24 and len(set(table["key"].to_pylist())) == 24
    assert {"scheme", "capacity", "misses", "bound_lru", "version"} <= set(table.column_names)
    written = sorted(path.stat().st_mtime_ns for path in (out / "runs").iterdir())
    again = sweep(plan, out)
    assert (again.found, again.computed) == (24, 0)
    assert written == sorted(path.stat().st_mtime_ns for path in (out / "runs").iterdir())
    # More of the same plan: only what is new is computed.
    plan.write_text(PLAN.format(capacities='["4K", "8K", "16K"]'))
    more = sweep(plan, out)
    assert (more.planned, more.found, more.computed) == (36, 24, 12)


def test_results_are_those_of_a_single_run(plan, tmp_path):
    results = sweep(plan, tmp_path / "out").results
    stream = lab.read_accesses(plan.with_name("trace.csv"))
    row = next(r for r in results.rows() if r["trace"] == "trace.csv" and r["scheme"] == "spec")
    run = {name: row[name] for name in ("scheme", "capacity", "ways", "seed")}
    assert lab.simulate(stream, run)["misses"][0] == row["misses"]


def test_what_only_some_runs_have_is_kept(plan, tmp_path):
    # Bounds depend on the scheme, and both are in one batch.
    plan.write_text(PLAN.format(capacities='["4K"]').replace('"spec"', '"2-universal"'))
    rows = list(sweep(plan, tmp_path / "out").results.rows())
    assert {row["scheme"] for row in rows} == {"mod", "2-universal"}
    for row in rows:
        own, other = ("bound_set_min", "bound_greedy")[:: 1 if row["scheme"] == "mod" else -1]
        assert row[own] is not None and row[other] is None, row
    stored = Store(tmp_path / "out").rows(row["key"] for row in rows)
    assert [one.get("bound_greedy") for one in stored] == [row["bound_greedy"] for row in rows]


def test_results_have_a_place_before_anything_is_computed(plan, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(errors.LabError, match="taken.*cannot be written"):
        sweep(plan, tmp_path / "taken")
    with pytest.raises(errors.ArgumentError, match="threads -1"):
        sweep(plan, tmp_path / "out", threads=-1)
    pytest.importorskip("distributed")
    with pytest.raises(errors.PlanError, match="foo://x.*tcp://HOST:PORT"):
        sweep(plan, tmp_path / "out", scheduler="foo://x")


def test_what_reading_left_out_is_told(plan, tmp_path):
    with open(plan.with_name("trace.csv"), "a") as out:
        out.write("no row\n")
    notes = sweep(plan, tmp_path / "out").notes
    assert any("trace.csv" in note and "could not be read" in note for note in notes)
    text = PLAN.format(capacities='["4K"]')
    chosen = "expansion = { concurrent_sessions = [9, 10] }"
    plan.write_text(text.replace('"trace.csv"', f'"trace.csv"\n{chosen}'))
    failed = sweep(plan, tmp_path / "out").failed
    assert len(failed) == 2 and all("rows are accesses" in problem for problem in failed)


def test_keys_stand_for_content_configuration_and_version(plan):
    before = {task.key for task in tasks_of(plan)}
    assert len(before) == 24
    moved = plan.parent / "elsewhere"
    moved.mkdir()
    for name in ("plan.toml", "trace.csv"):
        (moved / name).write_bytes((plan.parent / name).read_bytes())
    assert {task.key for task in tasks_of(moved / "plan.toml")} == before
    with open(moved / "trace.csv", "a") as out:
        out.write("99999999,10.9.9.9,9\n")
    changed = {task.key for task in tasks_of(moved / "plan.toml")}
    assert len(changed & before) == 16, "the generated streams have not changed"


def test_a_worker_refuses_another_file_and_another_version(plan):
    task = tasks_of(plan)[0]
    with pytest.raises(errors.PlanError, match="install the same"):
        perform([task.text], "0.0.0")
    # The package's number is that of several states of what computes.
    other = re.sub(r'("version":"[^"+]*)\+\d+"', r'\1+0"', task.text)
    assert other != task.text
    with pytest.raises(errors.PlanError, match=r"\+0, and here is .*install the same"):
        perform([other], lab.__version__)
    with open(plan.with_name("trace.csv"), "a") as out:
        out.write("99999999,10.9.9.9,9\n")
    with pytest.raises(errors.TraceError, match="not the file that the sweep was planned with"):
        perform([task.text], lab.__version__)


def test_one_bad_trace_does_not_stop_the_others(plan, tmp_path):
    plan.with_name("trace.csv").write_text("time_us,ip,port\nno,no,no\n")
    outcome = sweep(plan, tmp_path / "out")
    assert outcome.computed == 16 and len(outcome.failed) == 1
    assert "8 runs" in outcome.failed[0] and "trace.csv" in outcome.failed[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[run]]\nscheme = 'mod'\n", "trace"),
        ("[[trace]]\nstandard = {}\n[[run]]\nscheme = 'best'\n", "best"),
        ("[[trace]]\nstandard = {}\n[[run]]\nscheme = 'mod'\nways = []\n", "ways"),
        ("this is no plan", "line 1"),
    ],
)
def test_plans_that_cannot_be_read_say_where(tmp_path, text, said):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(errors.PlanError, match=f"bad.toml.*{said}"):
        tasks_of(path)
    with pytest.raises(errors.LabError, match="nowhere.toml"):
        tasks_of(tmp_path / "nowhere.toml")


LONG = """
[[trace]]
standard = { sessions = 4000, seconds = 1200 }
[[run]]
scheme = "spec"
seed = { from = 1, to = 3000, step = 1 }
"""


def run_until_something_is_written(folder, how):
    """Starts a long sweep, ends it by a signal after its first file; gives its exit code, how
    long it took to end and how many runs it left on disk."""
    (folder / "long.toml").write_text(LONG)
    child = subprocess.Popen(
        [sys.executable, "-m", "fairlead_lab", "sweep", "long.toml", "--out", "long"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    store = Store(folder / "long")
    deadline = time.monotonic() + 60
    while not store.finished():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    begun = time.monotonic()
    os.kill(child.pid, how)
    _, said = child.communicate(timeout=30)
    return child.returncode, time.monotonic() - begun, len(store.finished()), said


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    code, _, kept, _ = run_until_something_is_written(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL and 0 < kept < 3000
    (tmp_path / "long.toml").write_text(LONG.replace("to = 3000", f"to = {kept + 5}"))
    outcome = sweep(tmp_path / "long.toml", tmp_path / "long")
    assert (outcome.found, outcome.computed) == (kept, 5)
    assert len(outcome.results) == kept + 5


def test_ctrl_c_ends_a_sweep_within_a_second_and_keeps_what_is_finished(tmp_path):
    code, took, kept, said = run_until_something_is_written(tmp_path, signal.SIGINT)
    assert code == 130 and took < SOON_S, (code, took)
    assert "the same command goes on" in said
    results = pyarrow.parquet.read_table(tmp_path / "long" / "results.parquet")
    assert results.num_rows == kept > 0


def test_workers_of_dask_do_the_same(plan, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        there = sweep(plan, tmp_path / "there", scheduler=cluster.scheduler_address)
        again = sweep(plan, tmp_path / "there", scheduler=cluster.scheduler_address)
    here = sweep(plan, tmp_path / "here")
    assert (there.computed, there.failed, again.computed) == (24, [], 0)
    assert list(there.results.rows()) == list(here.results.rows())


def test_a_scheduler_that_goes_away_is_named_and_what_is_finished_kept(plan, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    result, given = distributed.Future.result, []

    def once(future, *words, **named):
        if given:
            raise distributed.comm.CommClosedError("reset by peer")
        given.append(result(future, *words, **named))
        return given[0]

    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        monkeypatch.setattr(distributed.Future, "result", once)
        outcome = sweep(plan, tmp_path / "out", scheduler=cluster.scheduler_address)
        monkeypatch.undo()
    kept = len(given[0])
    assert outcome.computed == kept == len(outcome.results)
    [problem] = outcome.failed
    assert f"{24 - kept} runs: --scheduler " in problem and "the same command" in problem


def test_after_ctrl_c_no_scheduler_is_waited_for_and_no_file_is_read_again(
    plan, tmp_path, monkeypatch
):
    distributed = pytest.importorskip("distributed")
    closed = distributed.Client.close
    left = []

    def closed_late(client, *words, **named):
        time.sleep(2 * SOON_S)
        closed(client, *words, **named)

    def stop(done, of):
        monkeypatch.setattr(distributed.Client, "close", closed_late)
        monkeypatch.setattr(pyarrow.parquet, "read_table", None)
        left.append((done, time.monotonic()))
        raise KeyboardInterrupt

    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        outcome = sweep(plan, tmp_path / "out", scheduler=cluster.scheduler_address, progress=stop)
        [(done, begun)] = left
        assert time.monotonic() - begun < SOON_S
        monkeypatch.undo()
    assert outcome.interrupted and 0 < outcome.computed == done == len(outcome.results) < 24
    assert Store(tmp_path / "out").finished() == set(outcome.results["key"])


def test_what_goes_to_workers_is_named_by_all_of_it():
    def named(*keys):
        return _named([Task(key, "stream", "{}") for key in keys])

    # Workers give back what they have under a name, whoever asked for it.
    assert named("a", "b") == named("a", "b") != named("a", "c")
    assert len({named("a"), named("a", "b"), named("b", "a"), named("ab")}) == 4


def test_runs_that_a_plan_names_twice_are_one(plan, tmp_path):
    text = PLAN.format(capacities='["4K", "4K"]')
    plan.write_text(text + '[[run]]\nscheme = "mod"\ncapacity = "4K"\n')
    outcome = sweep(plan, tmp_path / "out")
    assert (outcome.planned, outcome.computed, len(outcome.results)) == (12, 12, 12)


def test_one_content_under_several_names_and_seeds_is_run_once(plan, tmp_path):
    log = '10.0.0.{} - - [01/Jul/1995:00:00:0{} -0400] "GET /a HTTP/1.0" 200 7\n'
    plan.with_name("log").write_text("".join(log.format(at, at) for at in range(8)))
    plan.with_name("copy.csv").write_bytes(plan.with_name("trace.csv").read_bytes())
    run = '[[run]]\nscheme = "mod"\nseed = 1\n'
    trace = '[[trace]]\npath = ["trace.csv", "./trace.csv", "copy.csv"]\n'
    plan.write_text(f"seeds = [1, 2, 3]\n{trace}{run}")
    outcome = sweep(plan, tmp_path / "out")
    assert (outcome.planned, outcome.computed, len(outcome.results)) == (1, 1, 1)
    # Of a log instants and ports are drawn; how often it is repeated at its own pace is not asked.
    trace = '[[trace]]\npath = "log"\nexpansion = { periods = [1, 2] }\n'
    plan.write_text(f"seeds = [1, 2, 3]\n{trace}{run}")
    assert len({task.stream for task in tasks_of(plan)}) == len(tasks_of(plan)) == 3


def test_rows_that_no_seed_changes_are_told(plan, tmp_path):
    row = "2015-07-22T09:00:28.{:06}Z b 10.0.0.{}:5000 10.9.9.9:80 0 0 0 200 200 0 5 \"GET / HTTP/1.1\" \"-\" - -\n"
    plan.with_name("elb.log").write_text("".join(row.format(at, at) for at in range(1, 99)))
    trace = '[[trace]]\npath = "elb.log"\n'
    plan.write_text(f"seeds = 3\n{trace}[[run]]\nscheme = 'mod'\nseed = 1\n")
    notes = sweep(plan, tmp_path / "out").notes
    assert [note for note in notes if "2 rows are other rows once more" in note], notes
    plan.write_text(f"seeds = 3\n{trace}[[run]]\nscheme = 'universal'\n")
    assert not sweep(plan, tmp_path / "out").notes


def test_a_sweep_does_not_read_pipes(plan):
    plan.with_name("trace.csv").unlink()
    os.mkfifo(plan.with_name("trace.csv"))
    with pytest.raises(errors.TraceError, match="trace.csv: a sweep reads its traces more than once"):
        tasks_of(plan)


def test_a_scheduler_that_is_not_there_is_named(plan, tmp_path):
    with pytest.raises(errors.PlanError, match="tcp://127.0.0.1:9.*is it running"):
        sweep(plan, tmp_path / "out", scheduler="tcp://127.0.0.1:9")
