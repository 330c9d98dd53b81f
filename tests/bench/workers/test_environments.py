"""Environments of engines import two of our packages only, and report why they cannot be installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_bench import BenchError, WorkerError
from bert_bench.workers import environments
from bert_bench.workers.environments import Environment, bench_cache_dir
from bert_bench.workers.worker_process import WorkerProcess


class CurrentPython(Environment):
    """An environment whose interpreter is the one that runs the tests."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A requirements file that replaces the shipped ones."""
    path = tmp_path / "requirements-toy.txt"
    path.write_text("# nothing\n")
    monkeypatch.setattr(environments, "requirements_file", lambda name: path)
    return path


def test_worker_sees_two_of_our_packages(tmp_path: Path) -> None:
    environment = CurrentPython("optimum", tmp_path)
    folder = Path(environment.variables()["PYTHONPATH"])
    assert {path.name for path in folder.iterdir()} == {"bert_bench", "bert_runtime"}
    assert environment.variables() == environment.variables()
    with WorkerProcess(environment) as worker:
        assert "numpy" in worker.call("versions", ["numpy", "no-such-distribution"])


HIDE_OTHER_PACKAGES = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bert_export", "bert_models", "click", "matplotlib", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Hidden())
import bert_bench.workers.service
"""
"""No engine's environment has these packages; here they are installed."""


def test_worker_imports_with_the_packages_of_an_engines_environment(tmp_path: Path) -> None:
    variables = {**os.environ, **Environment("openvino", tmp_path).variables()}
    command = [sys.executable, "-c", HIDE_OTHER_PACKAGES]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_missing_interpreter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="cannot be started"):
        WorkerProcess(Environment("optimum", tmp_path))


def test_changed_requirements_give_another_environment(tmp_path: Path, requirements: Path) -> None:
    before = Environment("toy", tmp_path).folder
    assert before == Environment("toy", tmp_path).folder
    requirements.write_text("numpy==1\n")
    assert Environment("toy", tmp_path).folder != before


def test_failed_installation_reports_pips_error(
    tmp_path: Path, requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements.write_text("./no-such-folder\n")
    environment = Environment("toy", tmp_path)
    commands: list[list[str]] = []
    run = environments.subprocess.run

    def run_current_pip(command: list[str], **options: object) -> object:
        """Skip creating the virtual environment, which takes seconds."""
        commands.append(command)
        if "venv" in command:
            environment.folder.mkdir()
            command = [sys.executable, "-c", ""]
        return run([sys.executable, *command[1:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(environments.subprocess, "run", run_current_pip)
    stages: list[str] = []
    with pytest.raises(BenchError, match=r"cannot install requirements-toy.txt: ERROR.*no-such-folder"):
        environment.ensure(stages.append)
    assert "requirements-toy.txt" in stages[0]
    assert commands[0][1:3] == ["-m", "venv"]
    with pytest.raises(BenchError):  # a failed installation is not complete
        environment.ensure(stages.append)


def test_complete_environment_is_not_installed_again(tmp_path: Path) -> None:
    environment = Environment("optimum", tmp_path)
    environment.folder.mkdir(parents=True)
    (environment.folder / "complete").touch()
    environment.ensure(lambda stage: pytest.fail(stage))


def test_cache_is_below_xdg_cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bench_cache_dir() == tmp_path / "bert-export" / "bench"
