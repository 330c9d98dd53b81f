"""`bert-export train --resume`: interruption, saved state and resumption."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor

from bert_models import load_model, open_checkpoint
from bert_models.training import saving
from bert_models.training.module import FineTuning

from .training_data import equal, write

Run = Callable[..., Result]


class Crash(BaseException):
    """The process has died."""


@pytest.fixture
def stop_in_epoch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, BaseException], None]]:
    """Raise an exception in the second step of an epoch, counted from 0, and check that Ctrl-C works afterwards."""
    step = FineTuning.training_step
    handler = signal.getsignal(signal.SIGINT)

    def stop(epoch: int, exception: BaseException) -> None:
        def interrupted(self: FineTuning, batch: Any, index: int) -> Tensor:
            if self.current_epoch == epoch and index == 1:
                raise exception
            return step(self, batch, index)

        monkeypatch.setattr(FineTuning, "training_step", interrupted)

    yield stop
    left, _ = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGINT, handler)
    assert left == handler


@pytest.fixture
def interrupted(
    run: Run,
    train_arguments: list[Any],
    tmp_path: Path,
    stop_in_epoch: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The output of a run that ended in its second epoch."""
    stop_in_epoch(1, Crash())
    with pytest.raises(Crash):
        run(*train_arguments, "--output", tmp_path / "trained")
    monkeypatch.undo()
    return tmp_path / "trained"


def test_files_of_others_in_an_interrupted_run_are_never_lost(
    run: Run, train_arguments: list[Any], interrupted: Path
) -> None:
    """To start over is refused; to go on keeps them."""
    (interrupted / "notes.txt").write_text("mine")
    result = run(*train_arguments, "--output", interrupted, "--force")
    assert result.exit_code == 1
    assert "there is also notes.txt, which would be lost; move that elsewhere first" in result.stderr
    assert "an interrupted training is there" in run(*train_arguments, "--output", interrupted).stderr
    assert run(*train_arguments, "--output", interrupted, "--resume").exit_code == 0
    assert (interrupted / "notes.txt").read_text() == "mine"
    (interrupted / "notes.txt").unlink()
    assert run(*train_arguments, "--output", interrupted, "--force").exit_code == 0


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), Crash()], ids=lambda error: type(error).__name__)
def test_resumed_run_equals_an_uninterrupted_one(
    run: Run,
    train_arguments: list[Any],
    whole_run: tuple[Path, Result],
    tmp_path: Path,
    stop_in_epoch: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    exception: BaseException,
) -> None:
    whole, parts = whole_run[0], tmp_path / "parts"
    stop_in_epoch(2, exception)
    if isinstance(exception, Crash):
        with pytest.raises(Crash):
            run(*train_arguments, "--output", parts)
    else:
        result = run(*train_arguments, "--output", parts)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "\nError: interrupted; go on from the last save with --resume" in result.stderr
    assert sorted(path.name for path in parts.iterdir()) == ["logs", "training"]
    monkeypatch.undo()

    refused = run(*train_arguments, "--output", parts)
    assert refused.exit_code == 1
    assert "an interrupted training is there; go on with --resume or start over with --force" in refused.stderr
    resumed = run(*train_arguments, "--output", parts, "--resume")
    assert resumed.exit_code == 0
    assert equal(whole, parts)
    assert not (parts / "training").exists()
    histories = [json.loads((path / "training.json").read_text())["epochs"] for path in (whole, parts)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("stop_at", "number", "options"),
    [
        ((0, 0), signal.SIGINT, []),
        ((1, 2), signal.SIGTERM, ["--sort-by-length"]),
        ((2, 0), signal.SIGINT, ["--accumulate", 2]),
        ((1, 3), signal.SIGINT, []),
    ],
    ids=["first step", "SIGTERM", "within a step of two batches", "last step of an epoch"],
)
def test_signal_saves_state_after_the_current_step(
    run: Run,
    train_arguments: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: tuple[int, int],
    number: signal.Signals,
    options: list[Any],
) -> None:
    """Also in the first epoch; the resumed run ends with the weights of an uninterrupted one."""
    step = FineTuning.training_step
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    steps: list[tuple[int, int]] = []

    def signalled_step(self: FineTuning, batch: Any, index: int) -> Tensor:
        steps.append((self.current_epoch, index))
        if steps[-1] == stop_at:
            os.kill(os.getpid(), number)
        return step(self, batch, index)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(*train_arguments, *options, "--output", whole).exit_code == 0
    monkeypatch.setattr(FineTuning, "training_step", signalled_step)
    result = run(*train_arguments, *options, "--output", parts)
    assert result.exit_code == 1
    assert "\nError: interrupted; go on from the last save with --resume" in result.stderr
    stopped = list(steps)
    assert stopped[-1] == ((2, 1) if "--accumulate" in options else stop_at)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    stop_at = (-1, -1)
    resumed = run(*train_arguments, *options, "--output", parts, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert [*stopped, *steps[len(stopped) :]] == [(epoch, index) for epoch in range(3) for index in range(4)]
    assert equal(whole, parts)
    histories = [json.loads((path / "training.json").read_text())["epochs"] for path in (whole, parts)]
    assert histories[0] == histories[1]
    rows = [(path / "logs" / "metrics.csv").read_text().count("\n") for path in (whole, parts)]
    assert rows[0] == rows[1]


def test_state_is_saved_within_epochs(
    run: Run,
    train_arguments: list[Any],
    whole_run: tuple[Path, Result],
    tmp_path: Path,
    stop_in_epoch: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is killed in its first epoch resumes from the last saved state."""
    monkeypatch.setattr(saving, "_MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "_MAX_SAVE_FRACTION", 1e9)
    stop_in_epoch(0, Crash())
    with pytest.raises(Crash):
        run(*train_arguments, "--output", tmp_path / "trained")
    assert sorted(path.name for path in (tmp_path / "trained" / "training").iterdir()) == ["last.ckpt"]
    monkeypatch.undo()
    assert run(*train_arguments, "--output", tmp_path / "trained", "--resume").exit_code == 0
    assert equal(whole_run[0], tmp_path / "trained")


def test_resume_with_other_labels_is_refused(
    run: Run, train_arguments: list[Any], tmp_path: Path, interrupted: Path
) -> None:
    for labels in (["x", "y", "z"], ["x", "y"]):
        path = write(tmp_path / "other.csv", [("hello", label) for label in labels])
        result = run(*train_arguments, "--train", path, "--dev", path, "--output", interrupted, "--resume")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "labels" in result.stderr
    assert run(*train_arguments, "--output", interrupted, "--resume").exit_code == 0


def test_resume_with_other_files_or_base_is_refused(
    run: Run, train_arguments: list[Any], tmp_path: Path, interrupted: Path
) -> None:
    named = {name: Path(train_arguments[train_arguments.index(name) + 1]) for name in ("--base", "--train", "--dev")}
    more = tmp_path / "more.csv"
    lines = named["--train"].read_text(encoding="utf-8").splitlines()
    more.write_text("\n".join([*lines, lines[1]]) + "\n", encoding="utf-8")
    refused = run(*train_arguments, "--train", more, "--output", interrupted, "--resume")
    assert refused.exit_code == 1
    assert "the interrupted run was another one: sha256 of the train file was " in refused.stderr
    base = Path(shutil.copytree(named["--base"], tmp_path / "base"))
    config = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    (base / "tokenizer_config.json").write_text(json.dumps({**config, "do_lower_case": False}), encoding="utf-8")
    refused = run(*train_arguments, "--base", base, "--output", interrupted, "--resume")
    assert refused.exit_code == 1
    assert "another one: base was " in refused.stderr
    moved = Path(shutil.copy(named["--train"], tmp_path / "moved.csv"))
    assert run(*train_arguments, "--train", moved, "--output", interrupted, "--resume").exit_code == 0


def test_moved_run_folder_keeps_the_best_epoch(
    run: Run,
    train_arguments: list[Any],
    tmp_path: Path,
    stop_in_epoch: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make the metric worse in every epoch after the first."""

    def worse(self: FineTuning, parts: Any) -> dict[str, float]:
        return {self.model.task.metric: 0.9 - 0.1 * self.current_epoch}

    monkeypatch.setattr(FineTuning, "_score", worse)
    stop_in_epoch(1, Crash())
    with pytest.raises(Crash):
        run(*train_arguments, "--output", tmp_path / "first")
    monkeypatch.undo()
    monkeypatch.setattr(FineTuning, "_score", worse)
    best = torch.load(tmp_path / "first" / "training" / "best.ckpt", weights_only=True)["state_dict"]
    (tmp_path / "first").rename(tmp_path / "second")
    assert run(*train_arguments, "--output", tmp_path / "second", "--resume").exit_code == 0
    assert json.loads((tmp_path / "second" / "training.json").read_text())["best"]["epoch"] == 1
    source = open_checkpoint(tmp_path / "second")
    found = load_model(source, source.task()).state_dict()
    assert all(torch.equal(found[name], best[f"model.{name}"]) for name in found)


def test_damaged_training_state_is_reported(run: Run, train_arguments: list[Any], interrupted: Path) -> None:
    state = interrupted / "training" / "last.ckpt"
    with state.open("r+b") as stream:
        stream.truncate(1000)
    result = run(*train_arguments, "--output", interrupted, "--resume")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{state}: " in result.stderr


def test_force_restarts_an_interrupted_run(run: Run, train_arguments: list[Any], interrupted: Path) -> None:
    assert run(*train_arguments, "--epochs", 1, "--output", interrupted, "--force").exit_code == 0
    assert not (interrupted / "training").exists()


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), Crash()], ids=lambda error: type(error).__name__)
def test_run_stopped_in_first_epoch_does_not_block_the_next(
    run: Run,
    train_arguments: list[Any],
    tmp_path: Path,
    stop_in_epoch: Callable[[int, BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    exception: BaseException,
) -> None:
    """There is nothing to resume and nothing to lose."""
    stop_in_epoch(0, exception)
    if isinstance(exception, Crash):
        with pytest.raises(Crash):
            run(*train_arguments, "--output", tmp_path / "trained")
    else:
        result = run(*train_arguments, "--output", tmp_path / "trained")
        assert result.exit_code == 1
        assert result.stderr.endswith("\nError: interrupted before anything was saved; start again\n")
    monkeypatch.undo()
    assert run(*train_arguments, "--epochs", 1, "--output", tmp_path / "trained").exit_code == 0


def test_nothing_to_resume(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    result = run(*train_arguments, "--output", tmp_path / "trained", "--resume")
    assert result.exit_code == 1
    assert "nothing to resume: expected " in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_failed_save_keeps_the_previous_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "training" / "last.ckpt"
    files = saving.AtomicCheckpointIO()
    files.save_checkpoint({"step": 1}, target)

    def full(checkpoint: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space left"):
        files.save_checkpoint({"step": 2}, target)
    assert torch.load(target, weights_only=True) == {"step": 1}
    assert [path.name for path in target.parent.iterdir()] == ["last.ckpt"]


def test_labels_missing_in_dev_file_are_reported(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    rows = Path(train_arguments[train_arguments.index("--train") + 1]).read_text(encoding="utf-8").splitlines()
    more = tmp_path / "more.csv"
    more.write_text("\n".join([*rows, "what a day,surprise"]) + "\n", encoding="utf-8")
    arguments = [more if argument == train_arguments[4] else argument for argument in train_arguments]
    result = run(*arguments, "--epochs", 1, "--output", tmp_path / "trained")
    assert result.exit_code == 0
    assert "dev.csv has no example of 1 of the labels: surprise" in result.stderr
