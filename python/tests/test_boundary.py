"""What crosses between Rust and Python: faults, Ctrl-C, progress, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import SOON_S

import fairlead_lab
from fairlead_lab import _core, errors


def test_a_panic_is_an_exception_of_ours_and_the_process_goes_on():
    with pytest.raises(errors.InternalError, match="asked to"):
        _core._panic_for_tests()
    assert issubclass(errors.InternalError, errors.LabError)
    assert _core.version() == fairlead_lab.__version__


def test_the_lock_is_released_while_the_core_works():
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    _core._wait_for_tests(300)
    stop.set()
    thread.join()
    assert len(ticks) > 20


def test_progress_is_told_and_what_it_raises_stops_the_work():
    told = []
    _core._wait_for_tests(300, lambda done, total: told.append((done, total)))
    assert told and all(total == 300 for _, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)

    def refuse(done, total):
        raise RuntimeError("enough")

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="enough"):
        _core._wait_for_tests(20_000, refuse)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("deaf", [False, True])
def test_ctrl_c_ends_long_work_within_a_second(deaf):
    code = (
        "from fairlead_lab import _core; print('on', flush=True);"
        f"_core._wait_for_tests(30_000, deaf={deaf})"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "on\n"
    time.sleep(0.3)
    begun = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=10)
    assert time.monotonic() - begun < SOON_S
    # Of this kind always, so that `except Interrupted` can be relied on.
    assert "fairlead_lab.errors.Interrupted" in said and child.returncode != 0


def test_columns_are_read_only_views_that_keep_their_memory():
    accesses = fairlead_lab.Accesses.from_columns([3, 1, 2], ["10.0.0.1"] * 3, [1, 2, 1])
    first, second = accesses.id, accesses.id
    assert first.ctypes.data == second.ctypes.data, "no copy"
    assert first.tolist() == [1, 0, 0]
    with pytest.raises(ValueError):
        first[0] = 7
    del accesses
    assert np.asarray(second).tolist() == [1, 0, 0]


def test_every_error_has_a_class_of_ours():
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert kind is getattr(fairlead_lab, name)
        assert issubclass(kind, (errors.LabError, KeyboardInterrupt))
