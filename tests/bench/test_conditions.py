"""Conditions of a measurement: the commit of the sources."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bert_bench import conditions
from bert_bench.conditions import current_conditions

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def checkout(folder: Path) -> str:
    """Make a git checkout with one file `module.py` and return the commit."""
    (folder / "module.py").write_text("", encoding="utf-8")
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (("init", "-q"), ("add", "module.py"), (*author, "commit", "-qm", "first")):
        subprocess.run(("git", *command), cwd=folder, check=True)
    return subprocess.check_output(("git", "rev-parse", "--short=10", "HEAD"), cwd=folder, text=True).strip()


def test_the_commit_of_a_checkout_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = checkout(tmp_path)
    monkeypatch.setattr(conditions, "__file__", str(tmp_path / "module.py"))
    assert current_conditions(1).commit == commit
    (tmp_path / "module.py").write_text("changed", encoding="utf-8")
    assert current_conditions(1).commit == f"{commit}-dirty"


def test_sources_outside_a_checkout_have_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without a checkout, nor as untracked files below one, where an environment may lie, nor without git."""
    checkout(tmp_path)
    installed = tmp_path / ".venv" / "module.py"
    installed.parent.mkdir()
    installed.write_text("", encoding="utf-8")
    monkeypatch.setattr(conditions, "__file__", str(installed))
    assert current_conditions(1).commit is None
    monkeypatch.setattr(conditions, "__file__", str(tmp_path / "module.py"))
    monkeypatch.setenv("PATH", "")
    assert current_conditions(1).commit is None
