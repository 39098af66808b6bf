"""What the tests share: small streams, and running the command as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

# By when what is stopped has ended: asked for is a second, of a machine that has time for it. What
# does not listen takes longer by far.
SOON_S = 5


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs ``fairlead-lab`` in a folder of its own; output is text, and not a terminal."""

    def run(*words: object, ok: bool = True) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead_lab", *map(str, words)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, env=os.environ.copy(),
        )
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def burst_columns() -> dict:
    """Accesses of 3,000 sessions in bursts: enough that a cache of 512 lines misses."""
    rng = np.random.default_rng(7)
    session = np.repeat(rng.integers(0, 3000, 4000), 5)
    time_us = np.sort(rng.integers(0, 60_000_000, len(session)))
    return {
        "time_us": time_us,
        "ip": [f"10.0.{s // 256}.{s % 256}" for s in session.tolist()],
        "port": 1024 + session % 7,
    }
