"""The choice of the arithmetic of training."""

from pathlib import Path

import pytest
import torch

from bert_models import TaskModel, TrainingError, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import ExampleDataset
from bert_models.training.precision import ChosenPrecision, choose_precision
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TextClassification,
)


def records(labels: list[object], name: str = "train.jsonl") -> list[Record]:
    texts = ["a", "b c", "a b c a b c", "c c", "b a b"]
    return [
        Record({"text": texts[i % len(texts)], "label": label}, Path(name), i + 1) for i, label in enumerate(labels)
    ]


@pytest.fixture(scope="module")
def examples(classifier_checkpoint: Path) -> ExampleDataset:
    task = TextClassification(labels=("x", "y"))
    rows = records(["x", "y"] * 20)
    return ExampleDataset(
        task, [task.example(row) for row in rows], open_checkpoint(classifier_checkpoint).text_tokenizer()
    )


def test_auto_precision_is_measured(
    examples: ExampleDataset, classifier_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(classifier_checkpoint)
    model = TaskModel(checkpoint.config, TextClassification(labels=("x", "y")))
    batch = examples.collate(range(4))
    assert choose_precision("bf16", model, batch, examples.objective) == ("bf16", {})
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: False)
    if not torch.cuda.is_available():
        assert choose_precision("auto", model, batch, examples.objective) == ("fp32", {})
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda name: True)
    chosen = choose_precision("auto", model, batch, examples.objective)
    assert set(chosen.seconds_per_step) == {"fp32", "bf16"}
    assert chosen.name == min(chosen.seconds_per_step, key=chosen.seconds_per_step.__getitem__)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "native", "warned"), [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)]
)
def test_emulated_bf16_is_warned_about(monkeypatch: pytest.MonkeyPatch, name: str, native: bool, warned: bool) -> None:
    monkeypatch.setattr("bert_models.training.precision.has_instruction_set", lambda _: native)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    ChosenPrecision(name, {}).report(said.append)
    assert [line.startswith("training in bf16, which this processor has no instructions for") for line in said] == (
        [True] if warned else []
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is there")
def test_fp16_needs_cuda(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is read or written before."""
    settings = TrainSettings(precision="fp16")
    with pytest.raises(TrainingError, match="precision fp16 needs CUDA, and torch finds no CUDA device; take bf16"):
        fine_tune("text-classification", classifier_checkpoint, "no.csv", "no.csv", tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()
