"""`bert-export train` in several processes: how they start, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bert_models.training import Placement

from .distributed_checks import TIMEOUT_S, subprocess_env, weights_match
from .distributed_runs import tune

COMMAND = [sys.executable, "-m", "bert_export.cli"]


def arguments(data_folder: Path, output: Path, *more: str) -> list[str]:
    """`bert-export train` on texts, four in the batch of each process."""
    files = ["--base", data_folder / "base", "--train", data_folder / "train.csv", "--dev", data_folder / "dev.csv"]
    recipe = ["--output", output, "--epochs", "2", "--lr", "1e-3", "--batch-size", "4", "--precision", "fp32"]
    return ["train", *map(str, files + recipe), *more]


def start(command: list[str], **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=subprocess_env(), text=True, start_new_session=True, **pipes, **options)


@pytest.mark.slow
def test_command_prints_an_error_once(data_folder: Path, tmp_path: Path) -> None:
    """The flags come from a file that both processes read; the second one prints nothing."""
    (tmp_path / "recipe.yaml").write_text("devices: 2\nstrategy: ddp\n")
    more = ("--config", str(tmp_path / "recipe.yaml"), "--task", "token-classification")
    running = start([*COMMAND, *arguments(data_folder, tmp_path / "out", *more)])
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert (running.returncode, out) == (1, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_command_starts_the_second_process(data_folder: Path, tmp_path: Path) -> None:
    running = start([*COMMAND, *arguments(data_folder, tmp_path / "out", "--devices", "2", "--json")])
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, err
    report = json.loads(out)
    assert report["placement"]["devices"] == 2
    assert err.count(" s  tokenizing ") == 1
    tune(data_folder, tmp_path / "one", Placement())
    assert weights_match(tmp_path / "one", tmp_path / "out", 1e-4)


@pytest.mark.slow
def test_torchrun_starts_both_processes(data_folder: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    running = start([*launcher, "bert_export.cli", *arguments(data_folder, tmp_path / "out", "--json")])
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, err
    assert json.loads(out)["placement"]["devices"] == 2
    tune(data_folder, tmp_path / "one", Placement())
    assert weights_match(tmp_path / "one", tmp_path / "out", 1e-4)
    running = start([*launcher, "bert_export.cli", *arguments(data_folder, tmp_path / "out")])
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1
    (error,) = [line for line in err.splitlines() if line.startswith("Error: ")]  # torchrun adds a table of its own
    assert error.endswith("a trained checkpoint is already there; replace it with --force")


@pytest.mark.slow
def test_two_nodes_train_together(data_folder: Path, tmp_path: Path) -> None:
    """With the environment variables of Lightning; torchrun's are tested above."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 400)}
    both = [
        subprocess.Popen(
            [*COMMAND, *arguments(data_folder, tmp_path / "out", "--nodes", "2", "--json")],
            env={**subprocess_env(), **address, "NODE_RANK": str(node)}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node in range(2)
    ]  # fmt: skip
    (first, err), (second, second_err) = (process.communicate(timeout=TIMEOUT_S) for process in both)
    assert [process.returncode for process in both] == [0, 0], err + second_err
    assert json.loads(first)["placement"]["nodes"] == 2
    assert second == ""
    tune(data_folder, tmp_path / "one", Placement())
    assert weights_match(tmp_path / "one", tmp_path / "out", 1e-4)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also if its exit code has not been read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the second process in /proc")
@pytest.mark.parametrize("to_all", [True, False], ids=["terminal", "first"])
def test_ctrl_c_ends_both_processes(data_folder: Path, tmp_path: Path, to_all: bool) -> None:
    """A terminal sends SIGINT to all processes, `kill` to the first one."""
    running = start([*COMMAND, *arguments(data_folder, tmp_path / "out", "--devices", "2", "--epochs", "10000")])
    limit = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "out" / "training" / "last.ckpt").is_file():
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.2)
    (second,) = children(running.pid)
    if to_all:
        os.killpg(running.pid, signal.SIGINT)
    else:
        running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err.rstrip().endswith("Error: interrupted; go on from the last save with --resume")
    assert err.count("Error") == 1
    while not has_ended(second):
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the second process in /proc")
def test_killed_process_ends_the_other(data_folder: Path, tmp_path: Path) -> None:
    running = start([*COMMAND, *arguments(data_folder, tmp_path / "out", "--devices", "2", "--epochs", "10000")])
    limit = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "out" / "training" / "last.ckpt").is_file():
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.2)
    (second,) = children(running.pid)
    os.kill(second, signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    if running.returncode != -signal.SIGKILL:  # Lightning polls every five seconds, and may notice first
        assert running.returncode == 1
        assert err.splitlines()[-1].startswith("Error: process 1 of this machine ended with code -9; its error")
