"""Resume an interrupted run: with its own settings only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_models import TrainingError
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.base_module import STATE_VERSION
from bert_models.training.lifecycle import resumed_precision
from bert_models.training.run_dir import LAST_NAME

WHOLE = {"seed": 0, "dropout": None}
PRUNED = {**WHOLE, "token_pruning": "2:0.5"}


def save_state(folder: Path, identity: dict[str, Any]) -> None:
    torch.save({"run": identity, "precision": "fp32", "version": STATE_VERSION}, folder / LAST_NAME)


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [(PRUNED, WHOLE, "was '2:0.5', is now None"), (WHOLE, PRUNED, "was None, is now '2:0.5'")],
)
def test_run_with_token_pruning_goes_on_with_the_same_schedule_only(
    before: dict[str, Any], now: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    save_state(tmp_path, before)
    with pytest.raises(TrainingError, match=f"the interrupted run was another one: token_pruning {difference}; resume"):
        resumed_precision(tmp_path, now)
    assert resumed_precision(tmp_path, before).name == "fp32"


def test_states_of_other_versions_are_refused(tmp_path: Path) -> None:
    torch.save({"run": WHOLE, "precision": "fp32"}, tmp_path / LAST_NAME)
    with pytest.raises(TrainingError, match="expected the state of a run of this version, found one of"):
        resumed_precision(tmp_path, WHOLE)


def test_files_put_into_the_output_while_a_run_trains_stay(classifier_checkpoint: Path, tmp_path: Path) -> None:
    (data := tmp_path / "rows.csv").write_text("text,label\nmy card,a\nrain,b\n")
    out = tmp_path / "out"

    def write_notes(stage: str) -> None:
        if stage.startswith("writing the checkpoint"):
            (out / "notes").mkdir()
            (out / "notes" / "plan.txt").write_text("plan")
            (out / "todo.txt").write_text("todo")
            (out / "link").symlink_to("missing")

    settings = TrainSettings(epochs=1, precision="fp32")
    fine_tune("text-classification", classifier_checkpoint, data, data, out, settings, progress=write_notes)
    assert (out / "notes" / "plan.txt").read_text() == "plan"
    assert (out / "todo.txt").read_text() == "todo"
    assert (out / "link").readlink() == Path("missing")
    assert not (out / "training").exists()
    assert (out / "model.safetensors").is_file()


def test_a_file_that_cannot_be_kept_ends_the_run_with_its_state(
    classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is moved, `resume` has only the checkpoint to write."""
    (data := tmp_path / "rows.csv").write_text("text,label\nmy card,a\nrain,b\n")
    out, settings = tmp_path / "out", TrainSettings(epochs=1, precision="fp32")

    def write_todo(stage: str) -> None:
        if stage.startswith("writing the checkpoint"):
            (out / "todo.txt").write_text("todo")

    def refuse(*given: Any, **options: Any) -> None:
        raise PermissionError("not yours")

    def train(**options: Any) -> None:
        fine_tune("text-classification", classifier_checkpoint, data, data, out, settings, **options)

    with monkeypatch.context() as patch:
        patch.setattr("bert_models.training.run_dir._link_or_copy", refuse)
        with pytest.raises(TrainingError, match=r"todo\.txt: .* cannot be kept: not yours; move it elsewhere"):
            train(progress=write_todo)
    assert (out / "training" / LAST_NAME).is_file()
    train(resume=True)
    assert (out / "todo.txt").read_text() == "todo"
    assert (out / "model.safetensors").is_file()


def test_a_run_that_selects_by_another_metric_is_another_one(classifier_checkpoint: Path, tmp_path: Path) -> None:
    (data := tmp_path / "rows.csv").write_text("text,label\nmy card,a\nrain,b\n")
    out, settings = tmp_path / "out", TrainSettings(epochs=1, precision="fp32")

    def stop(stage: str) -> None:
        if stage.startswith("writing the checkpoint"):
            raise TrainingError("stopped")

    with pytest.raises(TrainingError, match=r"^stopped$"):
        fine_tune("text-classification", classifier_checkpoint, data, data, out, settings, progress=stop)
    other = replace(settings, metric="macro_f1")
    with pytest.raises(TrainingError, match="metric was 'accuracy', is now 'macro_f1'"):
        fine_tune("text-classification", classifier_checkpoint, data, data, out, other, resume=True)
    named = replace(settings, metric="accuracy")  # the same one, by name
    fine_tune("text-classification", classifier_checkpoint, data, data, out, named, resume=True)
