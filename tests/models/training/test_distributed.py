"""Two processes on the CPU, really started: the same run as one process with twice the batch."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_models import EncoderConfig, TaskModel, TrainingError, save_model
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training import Placement
from bert_models.training.distributed.process_group import ProcessGroup
from bert_models.weights import read_weights
from bert_runtime.tasks import TextClassification

from .distributed_runs import RUNS, toys, tune

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "my card is lost at the bank please help good morning where is your train it was late see you later"

TOO_LONG_S = 280
"""For all runs together, on a core that is busy with something else."""


def sentence(words: int, draw: random.Random) -> str:
    return " ".join(draw.choices(TEXT.split(), k=words))


@pytest.fixture(scope="module")
def folder(toy_config: EncoderConfig, toy_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base without dropout, and files of 45 and 13 examples, which no number of processes divides."""
    place, draw = tmp_path_factory.mktemp("distributed"), random.Random(0)
    torch.manual_seed(0)
    model = TaskModel(
        replace(toy_config, hidden_dropout=0.0, attention_dropout=0.0), TextClassification(labels=("x", "y", "z"))
    )
    (place / "base").mkdir()
    save_model(model, place / "base", tokenizer_from=toy_vocab)
    (place / "tokenizer").mkdir()
    read_tokenizer(toy_vocab, "bert").save(str(place / "tokenizer" / "tokenizer.json"))
    for name, count in (("train", 45), ("dev", 13)):
        rows = [f"{sentence(draw.randint(2, 14), draw)},{draw.choice('xyz')}\n" for _ in range(count)]
        (place / f"{name}.csv").write_text("text,label\n" + "".join(rows))
        texts = [sentence(draw.randint(1, 14), draw).split() for _ in range(count)]
        tagged = ["".join(f"{word} {draw.choice(['O', 'B-a', 'I-a'])}\n" for word in text) for text in texts]
        (place / f"{name}.conll").write_text("\n".join(tagged))
    documents = ["\n".join(sentence(draw.randint(3, 9), draw) for _ in range(6)) for _ in range(60)]
    (place / "corpus.txt").write_text("\n\n".join(documents))
    return place


def environment() -> dict[str, str]:
    """Of a command that is not itself one of several processes."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each of two processes has found, after all runs of distributed_runs.py."""
    script = Path(__file__).with_name("distributed_runs.py")
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TOO_LONG_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"process{rank}.json").read_text()) for rank in range(2)]


def logged(checkpoint: Path) -> list[dict[str, float]]:
    with (checkpoint / "logs" / "metrics.csv").open() as stream:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(stream)]


def same_log(one: Path, two: Path, tolerance: float) -> bool:
    """Whether every step's loss and learning rate and every epoch's dev metrics are within the tolerance."""
    first, second = logged(one), logged(two)
    return len(first) == len(second) and all(
        row == pytest.approx(other, abs=tolerance) for row, other in zip(first, second, strict=True)
    )


def close(one: Path, two: Path, tolerance: float) -> bool:
    """Whether weights differ by no more than the tolerance.

    Biases of keys are left out: softmax does not see them, so that their gradients are rounding errors, which Adam
    scales up to whole steps.
    """
    first, second = read_weights(one), read_weights(two)
    assert first.keys() == second.keys()
    return all(
        float((first[key] - second[key]).abs().max()) <= tolerance for key in first if not key.endswith("key.bias")
    )


@pytest.mark.timeout(TOO_LONG_S + 20)
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one_with_twice_the_batch(
    name: str, folder: Path, found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toys(monkeypatch)
    one = RUNS[name](folder, tmp_path / "one", Placement())
    two = found[0]["reports"][name]
    assert one["placement"]["global_batch"] == two["placement"]["global_batch"]
    assert (two["placement"]["devices"], two["placement"]["nodes"]) == (2, 1)
    key = "epochs" if "epochs" in one else "measured"
    assert len(one[key]) == len(two[key])
    for first, second in zip(one[key], two[key], strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    if key == "epochs":
        assert same_log(tmp_path / "one", folder / "two" / name, 1e-5)
    # Adam divides by the size of gradients: a step changes by what they differ in relation to themselves.
    assert close(tmp_path / "one", folder / "two" / name, 1e-4)


@pytest.mark.timeout(TOO_LONG_S + 20)
def test_both_processes_return_the_same_report(found: list[dict[str, Any]]) -> None:
    first, second = (process["reports"] for process in found)
    assert [process["rank"] for process in found] == [0, 1]
    for name in RUNS:
        for report in (first[name], second[name]):
            report.pop("seconds")
    assert first == second


def test_each_process_of_fsdp_holds_half_of_the_parameters(found: list[dict[str, Any]]) -> None:
    for process in found:
        here, all_of_them = process["sizes"]
        assert all_of_them > 10_000
        assert here == all_of_them / 2


def test_a_run_of_two_processes_is_resumed_by_two(folder: Path, found: list[dict[str, Any]]) -> None:
    for name in ("parts-ddp", "parts-fsdp"):
        assert close(folder / "whole", folder / name, 0.0 if name == "parts-ddp" else 1e-6)
        assert same_log(folder / "whole", folder / name, 1e-6)
        assert not (folder / name / "training").exists()


def test_a_run_of_two_processes_is_resumed_by_one_with_twice_the_batch(
    folder: Path, found: list[dict[str, Any]]
) -> None:
    state = folder / "state"
    with pytest.raises(TrainingError, match="another one: batch_size of all processes was 8, is now 4; resume with"):
        tune(folder, state, Placement(), resume=True, settings={"batch_size": 4})
    tune(folder, state, Placement(), resume=True)
    assert close(folder / "whole", state, 1e-4)


def test_an_error_in_one_process_is_one_in_all(found: list[dict[str, Any]]) -> None:
    assert found[0]["data"] == "process 1 of 2: a file that only this machine has"
    assert found[1]["data"] == "a file that only this machine has"
    for process in found:
        assert process["output"].endswith("exists and was not written by a training run; choose another output folder")
        assert process["loss"].startswith("the loss became nan at step 0 ")
        assert process["turns"] == process["rank"]
        assert process["threads"] == 1


COMMAND = [sys.executable, "-m", "bert_export.cli"]


def arguments(folder: Path, output: Path, *more: str) -> list[str]:
    """`bert-export train` on texts, four in the batch of each process."""
    files = ["--base", folder / "base", "--train", folder / "train.csv", "--dev", folder / "dev.csv"]
    recipe = ["--output", output, "--epochs", "2", "--lr", "1e-3", "--batch-size", "4", "--precision", "fp32"]
    return ["train", *map(str, files + recipe), *more]


def start(command: list[str], **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment(), text=True, start_new_session=True, **pipes, **options)


def test_the_command_says_once_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    """The flags come from a file; both processes read it, and the second one finds nothing to say."""
    (tmp_path / "recipe.yaml").write_text("devices: 2\nstrategy: ddp\n")
    more = ("--config", str(tmp_path / "recipe.yaml"), "--task", "token-classification")
    running = start([*COMMAND, *arguments(folder, tmp_path / "out", *more)])
    out, err = running.communicate(timeout=TOO_LONG_S)
    assert (running.returncode, out) == (1, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_starts_the_second_process_itself(folder: Path, tmp_path: Path) -> None:
    running = start([*COMMAND, *arguments(folder, tmp_path / "out", "--devices", "2", "--json")])
    out, err = running.communicate(timeout=TOO_LONG_S)
    assert running.returncode == 0, err
    report = json.loads(out)
    assert report["placement"]["devices"] == 2
    assert err.count(" s  tokenizing ") == 1
    tune(folder, tmp_path / "one", Placement())
    assert close(tmp_path / "one", tmp_path / "out", 1e-4)


@pytest.mark.slow
def test_torchrun_starts_them_all(folder: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    running = start([*launcher, "bert_export.cli", *arguments(folder, tmp_path / "out", "--json")])
    out, err = running.communicate(timeout=TOO_LONG_S)
    assert running.returncode == 0, err
    assert json.loads(out)["placement"]["devices"] == 2
    tune(folder, tmp_path / "one", Placement())
    assert close(tmp_path / "one", tmp_path / "out", 1e-4)
    running = start([*launcher, "bert_export.cli", *arguments(folder, tmp_path / "out")])
    out, err = running.communicate(timeout=TOO_LONG_S)
    assert running.returncode == 1
    (ours,) = [line for line in err.splitlines() if line.startswith("Error: ")]  # torchrun adds a table of its own
    assert ours.endswith("a trained checkpoint is already there; replace it with --force")


@pytest.mark.slow
def test_two_nodes_meet(folder: Path, tmp_path: Path) -> None:
    """As Lightning's own environment has them; torchrun's is tested above."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + os.getpid() % 400)}
    both = [
        subprocess.Popen(
            [*COMMAND, *arguments(folder, tmp_path / "out", "--nodes", "2", "--json")],
            env={**environment(), **address, "NODE_RANK": str(node)}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node in range(2)
    ]  # fmt: skip
    (first, err), (second, second_err) = (each.communicate(timeout=TOO_LONG_S) for each in both)
    assert [each.returncode for each in both] == [0, 0], err + second_err
    assert json.loads(first)["placement"]["nodes"] == 2
    assert second == ""
    tune(folder, tmp_path / "one", Placement())
    assert close(tmp_path / "one", tmp_path / "out", 1e-4)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the second process in /proc")
@pytest.mark.parametrize("everybody", [True, False], ids=["terminal", "first"])
def test_ctrl_c_ends_both(folder: Path, tmp_path: Path, everybody: bool) -> None:
    """A terminal sends it to all processes, `kill` to the first one."""
    running = start([*COMMAND, *arguments(folder, tmp_path / "out", "--devices", "2", "--epochs", "10000")])
    limit = time.monotonic() + TOO_LONG_S
    while not (tmp_path / "out" / "training" / "last.ckpt").is_file():
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.2)
    (second,) = children(running.pid)
    if everybody:
        os.killpg(running.pid, signal.SIGINT)
    else:
        running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err.rstrip().endswith("Error: interrupted; go on from the last save with --resume")
    assert err.count("Error") == 1
    while not gone(second):
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the second process in /proc")
def test_a_process_that_dies_does_not_leave_the_other_waiting(folder: Path, tmp_path: Path) -> None:
    running = start([*COMMAND, *arguments(folder, tmp_path / "out", "--devices", "2", "--epochs", "10000")])
    limit = time.monotonic() + TOO_LONG_S
    while not (tmp_path / "out" / "training" / "last.ckpt").is_file():
        assert running.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.2)
    (second,) = children(running.pid)
    os.kill(second, signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    if running.returncode != -signal.SIGKILL:  # Lightning looks every five seconds, and may be the first to notice
        assert running.returncode == 1
        assert err.splitlines()[-1].startswith("Error: process 1 of this machine ended with code -9, and what it said")


def test_what_is_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TrainingError, match=r"devices must be at least 1, found 0; nodes .* found -1; strategy must be"
    ):
        Placement(devices=0, nodes=-1, strategy="dp")
    for name in ("MASTER_ADDR", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        TrainingError, match=r"^2 nodes: MASTER_ADDR, .*NODE_RANK not set; .* torchrun --nnodes 2 --nproc-"
    ):
        Placement(nodes=2).resolve()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert Placement(devices="auto").resolve() == Placement(devices=4, nodes=1)
    assert Placement().resolve() == Placement(devices=1, nodes=1)
    with pytest.raises(TrainingError, match="expected at most 4 devices, which is how many GPUs torch sees, found 5"):
        Placement(devices=5).resolve()


def test_torchrun_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert Placement().resolve() == Placement(devices="auto").resolve() == Placement(devices=8, nodes=2)
    assert Placement(devices=8, nodes=2, strategy="fsdp").resolve().strategy == "fsdp"
    with pytest.raises(TrainingError, match="started 8 processes on each of 2 nodes, found devices 4 and nodes None"):
        Placement(devices=4).resolve()


def test_what_lightning_is_told() -> None:
    assert ProcessGroup().trainer_options() == {
        "accelerator": ProcessGroup().describe(1, 1)["accelerator"],
        "devices": 1,
    }
    ddp = ProcessGroup(devices=8, nodes=2).trainer_options()
    assert (ddp["devices"], ddp["num_nodes"], ddp["strategy"]) == (8, 2, "ddp")
    assert not ddp["use_distributed_sampler"]
    fsdp = ProcessGroup(devices=8, nodes=2, strategy="fsdp").trainer_options()
    assert type(fsdp["strategy"]).__name__ == "ModelParallelStrategy"
    assert ProcessGroup(devices=1, strategy="fsdp").describe(4, 2)["strategy"] is None
    assert ProcessGroup(devices=8, nodes=2).describe(4, 2)["global_batch"] == 128


def test_every_number_falls_to_somebody() -> None:
    for count in (1, 2, 5, 6):
        shares = [ProcessGroup(devices=3, rank=rank).shard_indices(count) for rank in range(3)]
        assert {len(share) for share in shares} == {-(-count // 3)}
        assert {number for share in shares for number in share} == set(range(count))
    assert [ProcessGroup(devices=3).num_threads(cores) for cores in (1, 3, 8)] == [1, 1, 2]
