"""Sweeps: many configurations over many traces, here or on many machines, resumed after a kill.

A plan (TOML) stands for runs; each has a key made of its trace's content, its configuration and the
version of what computes. Runs of one trace go together, because a trace is read and expanded once
and then feeds them all.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _core
from .errors import Interrupted, LabError, PlanError
from .frame import Frame
from .given import path_of, teller, whole
from .store import Store

__all__ = ["Outcome", "Task", "sweep", "tasks_of"]

#: How long a batch should take here: short enough that a kill loses little.
BATCH_S = 2.0
#: Runs that go to another machine together.
BATCH_REMOTE = 16
#: How long a scheduler is waited for after Ctrl-C.
PATIENCE_S = 0.2


@dataclass(frozen=True)
class Task:
    """One run of a plan."""

    #: Stands for trace, configuration and version.
    key: str
    #: Equal for runs over the same stream of accesses.
    stream: str
    #: All of it, as the core reads it.
    text: str


@dataclass
class Outcome:
    """Outcome of a sweep."""

    #: Runs that the plan stands for.
    planned: int
    #: Runs that had been computed before.
    found: int
    #: Runs that were computed now.
    computed: int = 0
    #: What could not be computed, and why.
    failed: List[str] = field(default_factory=list)
    #: True after Ctrl-C.
    interrupted: bool = False
    #: Things to know before believing the numbers, with the trace's name; those of streams that
    #: were read here.
    notes: List[str] = field(default_factory=list)
    #: All runs that are there, in the plan's order.
    results: Optional[Frame] = None

    def __str__(self) -> str:
        text = f"{self.planned} runs planned, {self.found} found, {self.computed} computed"
        if self.failed:
            text += f", {len(self.failed)} failed"
        return text


def tasks_of(plan: Union[str, Path]) -> List[Task]:
    """The runs that a plan file stands for.

    Raises :class:`PlanError` when it cannot be read, :class:`TraceError` when a trace is not there.
    """
    return [Task(*parts) for parts in _core.plan_tasks(path_of(plan, "plan"))]


def sweep(
    plan: Union[str, Path],
    out: Union[str, Path],
    scheduler: Optional[str] = None,
    threads: int = 0,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Outcome:
    """Runs ``plan`` with results in the directory ``out``; existing results are not computed again.

    ``scheduler`` is the address of a Dask scheduler (``tcp://…``) whose workers see the traces under
    the same paths; without one all cores of this machine are used (``threads`` of them, 0 = all).

    Ctrl-C ends it within a second, with what is finished on disk and ``interrupted`` set.
    """
    threads, progress = whole(threads, "threads"), teller(progress, None)
    tasks = tasks_of(plan)
    store = Store(path_of(out, "out"))
    store.prepare()
    finished = store.finished()
    todo = [task for task in tasks if task.key not in finished]
    outcome = Outcome(planned=len(tasks), found=len(tasks) - len(todo))
    run = _remote(scheduler) if scheduler else _local(threads, outcome.notes)
    try:
        for rows, problem in run(todo, _shifted(progress, outcome.found, len(tasks))):
            store.add(rows)
            outcome.computed += len(rows)
            if problem:
                outcome.failed.append(problem)
    except Interrupted as stop:
        rows = _rows(stop.finished or [])
        store.add(rows)
        outcome.computed += len(rows)
        outcome.interrupted = True
    except KeyboardInterrupt:
        outcome.interrupted = True
    rows = store.rows(task.key for task in tasks)
    outcome.notes.extend(_repeated(rows))
    outcome.results = Frame.of_rows(rows)
    if rows:
        store.write_results(outcome.results)
    return outcome


#: What decides a run over given accesses.
RUN = ("scheme", "capacity", "line", "ways", "index_bits", "threshold", "seed")


def _repeated(rows: Sequence[Dict[str, Any]]) -> List[str]:
    """That runs are not as many as they look: where nothing is drawn of a log, which has its ports and
    instants, its streams are one under all seeds. That shows when they are made."""
    runs = Counter((row["trace"], row["stream"], *map(row.get, RUN)) for row in rows)
    more = Counter({trace: 0 for trace, *_ in runs})
    for (trace, *_), times in runs.items():
        more[trace] += times - 1
    return [
        f"{trace}: {count} rows are other rows once more: no seed of the plan changes this trace's accesses"
        for trace, count in more.items()
        if count
    ]


#: Finished rows, and what went wrong, for a part of the tasks.
Part = Tuple[List[Dict[str, Any]], Optional[str]]
Tell = Callable[[int], None]


def _shifted(progress: Optional[Callable[[int, int], None]], before: int, total: int) -> Tell:
    def tell(done: int) -> None:
        if progress:
            progress(before + done, total)

    return tell


def _by_stream(tasks: Sequence[Task]) -> Iterator[List[Task]]:
    groups: Dict[str, List[Task]] = {}
    for task in tasks:
        groups.setdefault(task.stream, []).append(task)
    yield from groups.values()


def _local(threads: int, notes: List[str]) -> Callable[[Sequence[Task], Tell], Iterator[Part]]:
    """Runs on this machine's cores, in batches of about ``BATCH_S``."""

    def run(tasks: Sequence[Task], tell: Tell) -> Iterator[Part]:
        done = 0
        for group in _by_stream(tasks):
            try:
                stream = _core.TaskStream.of_task(group[0].text)
                notes.extend(note for note in stream.notes() if note not in notes)
            except LabError as error:
                yield [], f"{len(group)} runs: {error}"
                done += len(group)
                continue
            size = 8
            while group:
                batch, group = group[:size], group[size:]
                begun = time.monotonic()
                try:
                    texts = [task.text for task in batch]
                    rows = stream.run_tasks(texts, threads, _part(tell, done, len(batch)))
                    yield _rows(rows), None
                except LabError as error:
                    yield [], f"{len(batch)} runs: {error}"
                done += len(batch)
                tell(done)
                took = max(time.monotonic() - begun, 0.001)
                size = max(1, min(512, int(len(batch) * BATCH_S / took)))

    return run


def _part(tell: Tell, before: int, size: int) -> Callable[[int, int], None]:
    """Reports the progress of a batch, in runs."""
    return lambda at, of: tell(before + at * size // of)


def _remote(scheduler: str) -> Callable[[Sequence[Task], Tell], Iterator[Part]]:
    """Runs on the workers of a Dask scheduler."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise PlanError("--scheduler needs Dask: pip install 'fairlead-lab[dask]'") from None

    def run(tasks: Sequence[Task], tell: Tell) -> Iterator[Part]:
        if not tasks:
            return
        try:
            client = Client(scheduler, timeout="5s", set_as_default=False)
        except OSError as error:
            raise PlanError(f"--scheduler {scheduler}: no answer ({error}); is it running?") from error
        except (TypeError, ValueError) as error:
            raise PlanError(f"--scheduler {scheduler}: {error}; write tcp://HOST:PORT") from error
        futures: Dict[Any, int] = {}
        try:
            for group in _by_stream(tasks):
                for at in range(0, len(group), BATCH_REMOTE):
                    batch = group[at : at + BATCH_REMOTE]
                    texts = [task.text for task in batch]
                    name = _named(batch)
                    future = client.submit(
                        perform, texts, _core.version(), key=name, pure=True, retries=1
                    )
                    futures[future] = len(batch)
            done = 0
            for future in as_completed(futures, loop=client.loop):
                wrong = future.exception()
                rows = [] if wrong else future.result()
                size = futures.pop(future)
                yield rows, f"{size} runs: {wrong}" if wrong else None
                future.release()
                done += size
                tell(done)
        except OSError as error:
            left = sum(futures.values())
            yield [], (
                f"{left} runs: --scheduler {scheduler} is gone ({error}); the same command goes on "
                "with them"
            )
        finally:
            _leave(client, list(futures))

    return run


def _leave(client: Any, unfinished: List[Any]) -> None:
    """Cancels the remaining work at the scheduler. After Ctrl-C it does not wait for a slow
    scheduler, which also notices the closed connection."""

    def tidy() -> None:
        if unfinished:
            client.cancel(unfinished)
        client.close()

    if not unfinished:
        tidy()
        return
    apart = threading.Thread(target=tidy, daemon=True)
    apart.start()
    apart.join(PATIENCE_S)


def _named(batch: Sequence[Task]) -> str:
    """A name for a batch derived from everything it computes: the same batch of two sweeps is
    computed once, and no other batch has its name."""
    keys = "\n".join(task.key for task in batch)
    return f"fairlead-lab-{hashlib.sha256(keys.encode()).hexdigest()[:32]}"


#: The stream that this worker read last: its next task is likely to use it again.
_last: Dict[str, Any] = {}


def perform(texts: List[str], version: str) -> List[Dict[str, Any]]:
    """Executed by a worker: runs over one stream, on one thread."""
    if version != _core.version():
        raise PlanError(
            f"this worker has fairlead-lab {_core.version()} and the sweep {version}; install the same"
        )
    name = _core.stream_of_task(texts[0])
    stream = _last.get(name)
    if stream is None:
        _last.clear()
        stream = _last[name] = _core.TaskStream.of_task(texts[0])
    return _rows(stream.run_tasks(texts, 1, None))


def _rows(texts: Sequence[str]) -> List[Dict[str, Any]]:
    """Results as flat rows: bounds in separate columns, the recipe as JSON."""
    rows = []
    for text in texts:
        row = json.loads(text)
        bounds = row.pop("bounds", None) or {}
        row["made"] = json.dumps(row["made"], sort_keys=True)
        rows.append({**row, **{f"bound_{name}": value for name, value in bounds.items()}})
    return rows
