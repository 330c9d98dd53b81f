"""Label smoothing and class weights: their effect on the loss, and the tasks that support them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert_models import EncoderConfig, TaskModel, TrainingError, load_model, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.class_weights import balanced_weights, check_loss_settings
from bert_models.training.objectives import build_objective
from bert_runtime.records import Record
from bert_runtime.tasks import (
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

TASK = TextClassification(labels=("x", "y"))


def test_smoothing_and_weights_match_torch_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, targets, weights = torch.randn(4, 3), torch.tensor([0, 2, 1, 2]), torch.tensor([0.5, 1.0, 1.5])
    task = TextClassification(labels=("a", "b", "c"))
    model: Any = None
    found = build_objective(task, 0.2, weights).loss(model, logits, targets)
    assert found == F.cross_entropy(logits, targets, weights, label_smoothing=0.2)
    assert found != build_objective(task).loss(model, logits, targets)


def test_smoothing_ignores_unlabelled_tokens(toy_config: EncoderConfig) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(1, 4, 3), torch.tensor([[-100, 1, 2, -100]])
    task = TokenClassification(labels=("O", "B-x", "I-x"))
    found = build_objective(task, 0.1).loss(TaskModel(toy_config, task), logits, targets)
    assert found == F.cross_entropy(logits[0, 1:3], targets[0, 1:3], label_smoothing=0.1)


def test_a_batch_without_labelled_tokens_has_no_loss(toy_config: EncoderConfig) -> None:
    logits = torch.randn(1, 4, 3, requires_grad=True)
    task = TokenClassification(labels=("O", "B-x", "I-x"))
    found = build_objective(task).loss(TaskModel(toy_config, task), logits, torch.full((1, 4), -100))
    found.backward()
    assert (found.item(), logits.grad.abs().sum()) == (0, 0)  # type: ignore[union-attr]


def test_balanced_weights_are_inverse_frequencies() -> None:
    targets = [np.array(label) for label in (0, 0, 0, 1)]
    assert balanced_weights(targets, 2).tolist() == [0.5, 1.5]
    tokens = [np.array([-100, 0, 0, 0]), np.array([-100, 1])]
    assert balanced_weights(tokens, 3).tolist() == [0.5, 1.5, 1.0]


def test_balanced_weights_raise_the_probability_of_a_rare_class(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Texts are the same for both classes, so the model learns the class frequencies; weights make them equal."""
    data = tmp_path / "x.csv"
    data.write_text("text,label\n" + ("hello,x\n" * 7 + "hello,y\n") * 160)
    probability = {}
    for weights in (None, "balanced"):
        settings = TrainSettings(epochs=1, batch_size=32, lr=1e-2, class_weights=weights, precision="fp32")
        out = tmp_path / str(weights)
        fine_tune("text-classification", classifier_checkpoint, data, data, out, settings)
        source = open_checkpoint(out)
        model = load_model(source, source.task())
        with torch.no_grad():
            ids = torch.tensor([source.text_tokenizer().encode([_text("hello")])[0][0].ids])
            probability[weights] = float(model(ids, torch.ones_like(ids)).softmax(-1)[0, 1])
    assert probability[None] == pytest.approx(1 / 8, abs=0.06)
    assert probability["balanced"] == pytest.approx(0.5, abs=0.1)


def _text(text: str) -> Any:
    return TASK.example(Record({"text": text, "label": "x"}, Path("x"), 1)).inputs[0]


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (TextClassification(labels=("a", "b"), problem_type="multi_label"), "text-.* problem_type multi_label"),
        (TextClassification(labels=("score",), problem_type="regression"), "text-.* problem_type regression"),
        (TokenClassification(labels=("O", "B-x"), crf=True), "token-classification with crf"),
        (QuestionAnswering(), "question-answering"),
        (SentenceEmbedding(dimensions=2), "sentence-embedding"),
        (FillMask(mask_token="[MASK]", mask_token_id=4), "fill-mask"),
    ],
)
def test_unsupported_loss_settings_are_rejected(task: Task, kind: str) -> None:
    both = TrainSettings(label_smoothing=0.1, class_weights="balanced")
    with pytest.raises(TrainingError, match=f"^{kind} does not support label_smoothing and class_weights; expected "):
        check_loss_settings(task, both)
    with pytest.raises(TrainingError, match=f"^{kind} does not support class_weights; expected "):
        check_loss_settings(task, TrainSettings(class_weights="balanced"))
    with pytest.raises(TrainingError, match=f"^{task.name} does not support query_flops; expected sparse-embedding"):
        check_loss_settings(task, TrainSettings(query_flops=1e-3))
    check_loss_settings(task, TrainSettings())


@pytest.mark.parametrize(
    "task", [TASK, TokenClassification(labels=("O", "B-x")), NextSentencePrediction()], ids=lambda task: task.name
)
def test_supported_loss_settings_are_accepted(task: Task) -> None:
    check_loss_settings(task, TrainSettings(label_smoothing=0.1, class_weights="balanced"))
