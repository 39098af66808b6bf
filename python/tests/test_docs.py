"""The examples of the documentation run as they stand."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

TEXT = (ROOT / "docs" / "lab-python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/lab-python.md", "exec"), {})
    # What an example says that it prints, it prints.
    for said in re.findall(r"print\(.*\)\s+# (\w+\(.*\))$", example, flags=re.MULTILINE):
        assert said in capsys.readouterr().out
