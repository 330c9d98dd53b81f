"""Logs and plot of a training run, and the check of free disk space."""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from torch import Tensor

from bert_models.training.logs import build_loggers, plot_metrics
from bert_models.training.module import FineTuning

from .training_data import equal

Run = Callable[..., Result]


def metrics(folder: Path) -> list[dict[str, float]]:
    """Read the rows of the log, each without its empty columns."""
    with (folder / "logs" / "metrics.csv").open(newline="") as stream:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(stream)]


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Make training fail in the second step of an epoch, counted from 0."""
    step = FineTuning.training_step

    def at(epoch: int) -> None:
        def failing(self: FineTuning, batch: Any, index: int) -> Tensor:
            if self.current_epoch == epoch and index == 1:
                raise RuntimeError("the process is gone")
            return step(self, batch, index)

        monkeypatch.setattr(FineTuning, "training_step", failing)

    return at


def test_every_step_and_epoch_is_logged(whole_run: tuple[Path, Result]) -> None:
    trained = whole_run[0]
    report = json.loads((trained / "training.json").read_text())
    rows = metrics(trained)
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(12))
    assert steps[0]["lr"] == 0  # warm-up
    assert max(row["lr"] for row in steps) == pytest.approx(3e-3)
    epochs = [row for row in rows if "dev_accuracy" in row]
    assert [row["step"] for row in epochs] == [4, 8, 12]
    for row, entry in zip(epochs, report["epochs"], strict=True):
        assert row["dev_accuracy"] == pytest.approx(entry["accuracy"])
        losses = [step["loss"] for step in steps if row["step"] - 4 <= step["step"] < row["step"]]
        assert sum(losses) / 4 == pytest.approx(entry["train_loss"])


def test_tensorboard_log_equals_csv_log(whole_run: tuple[Path, Result]) -> None:
    events = list((whole_run[0] / "logs").glob("events.out.tfevents.*"))
    assert bool(events) == (find_spec("tensorboard") is not None)
    if not events:
        pytest.skip("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(whole_run[0] / "logs"))
    read.Reload()
    for name in ("loss", "lr", "dev_accuracy"):
        expected = [(row["step"], row[name]) for row in metrics(whole_run[0]) if name in row]
        found = [(event.step, event.value) for event in read.Scalars(name)]
        assert found == [(step, pytest.approx(value)) for step, value in expected]


def test_csv_is_logged_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert [type(logger).__name__ for logger in build_loggers(tmp_path)] == ["CSVLogger"]


def test_log_of_resumed_run_equals_uninterrupted_one(
    run: Run,
    train_arguments: list[Any],
    whole_run: tuple[Path, Result],
    tmp_path: Path,
    crash: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps after the last finished epoch, which the resumed run repeats, are logged once."""
    crash(2)
    with pytest.raises(RuntimeError):
        run(*train_arguments, "--output", tmp_path / "parts")
    assert metrics(tmp_path / "parts")[-1]["step"] == 8
    monkeypatch.undo()
    assert run(*train_arguments, "--output", tmp_path / "parts", "--resume").exit_code == 0
    assert metrics(tmp_path / "parts") == metrics(whole_run[0])


def test_log_is_kept_if_the_checkpoint_cannot_be_written(
    run: Run,
    train_arguments: list[Any],
    whole_run: tuple[Path, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All steps are done, so the resumed run takes none."""

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert_models.training.run.save_model", full)
    assert run(*train_arguments, "--output", tmp_path / "trained").exit_code == 1
    monkeypatch.undo()
    assert run(*train_arguments, "--output", tmp_path / "trained", "--resume").exit_code == 0
    assert metrics(tmp_path / "trained") == metrics(whole_run[0])
    assert equal(tmp_path / "trained", whole_run[0])


def test_refused_resume_keeps_the_log(
    run: Run, train_arguments: list[Any], tmp_path: Path, crash: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(1)
    with pytest.raises(RuntimeError):
        run(*train_arguments, "--output", tmp_path / "trained")
    monkeypatch.undo()
    before = metrics(tmp_path / "trained")
    result = run(*train_arguments, "--lr", 1, "--patience", 2, "--output", tmp_path / "trained", "--resume")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "another one: lr was 0.003, is now 1.0; patience was None, is now 2; resume with" in result.stderr
    assert metrics(tmp_path / "trained") == before


def test_folder_with_logs_only_is_not_overwritten(run: Run, train_arguments: list[Any], tmp_path: Path) -> None:
    """Only logs next to the state of a run, and nothing else, belong to a run."""
    for folder, others in (("logs", []), ("both", ["training", "thesis"])):
        for name in ("logs", *others):
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "file").write_text("precious")
        result = run(*train_arguments, "--output", tmp_path / folder, "--force")
        assert (result.exit_code, "was not written by a training run" in result.stderr) == (1, True)
        assert (tmp_path / folder / "logs" / "file").read_text() == "precious"


def test_logs_of_a_run_stopped_at_once_do_not_block_the_next(
    run: Run, train_arguments: list[Any], tmp_path: Path, crash: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(0)
    with pytest.raises(RuntimeError):
        run(*train_arguments, "--output", tmp_path / "trained")
    assert sorted(path.name for path in (tmp_path / "trained").iterdir()) == ["logs", "training"]
    monkeypatch.undo()
    assert run(*train_arguments, "--epochs", 1, "--output", tmp_path / "trained").exit_code == 0
    assert [row["step"] for row in metrics(tmp_path / "trained")] == [0, 1, 2, 3, 4]


def test_training_plot_is_written(
    whole_run: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (whole_run[0] / "training.png").read_bytes().startswith(b"\x89PNG")
    rows = [{"step": 0, "loss": 1.0, "lr": 0.1}, {"step": 1, "dev_accuracy": float("nan")}]
    plot_metrics(tmp_path / "undefined.png", rows, ["accuracy"])
    assert (tmp_path / "undefined.png").is_file()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot_metrics(tmp_path / "missing.png", rows, ["accuracy"])
    assert not (tmp_path / "missing.png").exists()


def test_full_disk_is_detected_before_training(
    run: Run, train_arguments: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def usage(folder: Path) -> SimpleNamespace:
        folders.append(folder)
        return SimpleNamespace(free=100_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    result = run(*train_arguments, "--output", tmp_path / "deep" / "trained")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: " + str(tmp_path / "deep" / "trained") + ": training writes 0." in result.stderr
    assert "and the disk has 0.1 MB free" in result.stderr
    assert folders == [tmp_path]
    assert list(tmp_path.iterdir()) == []


def test_disk_check_counts_files_of_the_interrupted_run_as_free(
    run: Run, train_arguments: list[Any], tmp_path: Path, crash: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(1)
    with pytest.raises(RuntimeError):
        run(*train_arguments, "--output", tmp_path / "trained")
    monkeypatch.undo()
    weights = (tmp_path / "trained" / "training" / "best.ckpt").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * weights))
    assert run(*train_arguments, "--output", tmp_path / "trained", "--resume").exit_code == 0
    assert run(*train_arguments, "--output", tmp_path / "new").exit_code == 1


def test_unwritable_output_folder_is_an_error(
    run: Run, train_arguments: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    result = run(*train_arguments, "--output", tmp_path / "trained")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {tmp_path / 'trained'}: cannot be written: [Errno 28] No space left on device" in result.stderr
    assert "Epoch 0" not in result.stderr
