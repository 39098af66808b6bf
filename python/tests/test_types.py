"""The package's types hold, for those who check theirs against them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT


def test_types_hold():
    pytest.importorskip("mypy")
    # What it is asked is in pyproject.toml; what it keeps lies with what else is built.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / "target" / "mypy")],
        cwd=ROOT / "python", capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
