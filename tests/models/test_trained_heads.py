"""Heads of checkpoints: loaded for the task that they were trained for, and for no other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from bert_export import export
from bert_models import CheckpointError, load_model, open_checkpoint


@pytest.fixture
def edited(classifier_checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return `edited(**changes)`, which copies a text-classification checkpoint with keys of `config.json` replaced."""

    def edit(**changes: Any) -> Path:
        folder = Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(values))
        return folder

    return edit


def load(folder: Path, task: str | None = None) -> object:
    source = open_checkpoint(folder)
    return load_model(source, source.task(task))


def test_head_of_another_task_is_refused(classifier_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        export(classifier_checkpoint, tmp_path / "bundle", task="token-classification")
    assert str(error.value) == (
        f"{classifier_checkpoint}: the checkpoint is a text-classification model (BertForSequenceClassification), not "
        "one for token-classification; export it with --task text-classification or sentence-embedding, or train a new "
        "head: bert-export train --task token-classification --base"
    )
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(CheckpointError, match="is a text-classification model"):
        load(classifier_checkpoint, "token-classification")


@pytest.mark.parametrize("architecture", ["RobertaForSequenceClassification", "BertForSequenceClassification"])
def test_architectures_of_other_families_name_their_head(edited: Callable[..., Path], architecture: str) -> None:
    with pytest.raises(CheckpointError, match="is a text-classification model"):
        load(edited(architectures=[architecture]), "token-classification")


def test_head_without_weights_is_refused(classifier_checkpoint: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"has no question-answering head: its weights are missing qa_outputs, and hold the head "
        r"of text-classification; export it with --task",
    ):
        load(classifier_checkpoint, "question-answering")


@pytest.mark.parametrize("task", [None, "text-classification", "token-classification"])
def test_multiple_choice_is_named(edited: Callable[..., Path], task: str | None, tmp_path: Path) -> None:
    folder = edited(architectures=["BertForMultipleChoice"], id2label=None)
    with pytest.raises(
        CheckpointError,
        match=r"is a multiple-choice model \(BertForMultipleChoice\), and no task here has that head; its encoder can "
        r"be exported with --task sentence-embedding, or trained with a new head",
    ):
        export(folder, tmp_path / "bundle", task=task)


@pytest.mark.parametrize("architectures", [None, ["BertModel"], ["OwnForThings"]])
def test_weights_decide_where_the_architecture_does_not_say(edited: Callable[..., Path], architectures: Any) -> None:
    load(edited(architectures=architectures), "text-classification")


def test_encoder_of_a_classifier_may_embed(classifier_checkpoint: Path) -> None:
    load(classifier_checkpoint, "sentence-embedding")


def test_second_head_that_the_weights_hold_is_loaded(edited: Callable[..., Path]) -> None:
    """Checkpoints of BERT name the masked-language-model head, and hold the sentence-pair head, too."""
    folder = edited(architectures=["BertForMaskedLM"])
    tensors = load_file(folder / "model.safetensors")
    for part in ("weight", "bias"):
        tensors[f"cls.seq_relationship.{part}"] = tensors.pop(f"classifier.{part}")[:2].clone()
    save_file(tensors, folder / "model.safetensors")
    load(folder, "next-sentence-prediction")


def test_new_heads_may_be_trained(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    load_model(source, source.task("token-classification"), new_head=True)


def test_labels_are_as_many_as_outputs(edited: Callable[..., Path]) -> None:
    folder = edited(id2label={"0": "a", "1": "b"})
    with pytest.raises(
        CheckpointError,
        match=r"config\.json: id2label has 2 labels, and the head in the weights has 3 outputs \(classifier\.weight of "
        r"shape \[3, 32\]\); give id2label a name for each output",
    ):
        load(folder)
