"""Losses between student and teacher, and the settings that weigh them."""

import math

import pytest
import torch
from torch import Tensor

from bert_models import TrainingError
from bert_models.distillation import DistillationSettings
from bert_models.distillation.losses import (
    SOFT_LOSSES,
    attention_divergence,
    binary_kl_divergence,
    kl_divergence,
    soft_loss,
)
from bert_runtime.tasks import TASKS

from .teachers import TEACHERS


def test_kl_divergence_is_scaled_by_the_squared_temperature() -> None:
    student, teacher = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, -1.0]])
    p, q = 1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(1.0))  # of the first, at temperature 2
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert float(kl_divergence(student, teacher, 2.0)) == pytest.approx(4 * divergence, abs=1e-6)
    # A decision with the logit x is a distribution of two classes with the logits x and 0.
    pairs = [torch.stack([logits.flatten(), torch.zeros(2)], dim=-1) for logits in (student, teacher)]
    assert float(binary_kl_divergence(student, teacher, 3.0)) == pytest.approx(
        float(kl_divergence(*pairs, 3.0)), abs=1e-5
    )


def test_attention_divergence_ignores_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 2, 4, 5, 5, generator=generator)
    tokens = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    found = attention_divergence(student, teacher, tokens)
    student[0, :, 3:], student[0, :, :, 3:] = 9.0, -7.0
    assert float(attention_divergence(student, teacher, tokens)) == pytest.approx(float(found), rel=1e-6)
    assert float(attention_divergence(teacher, teacher, tokens)) == pytest.approx(0.0, abs=1e-6)
    assert float(found) > 0.1


@pytest.mark.parametrize("kind", TEACHERS)
def test_soft_loss_grows_with_the_difference_and_ignores_padding(kind: str) -> None:
    task = TEACHERS[kind][1]
    shape = {
        "token-classification": (2, 5, 3), "crf": (2, 5, 3), "question-answering": (2, 5, 2),
        "replaced-token-detection": (2, 5), "sentence-embedding": (2, 8), "regression": (2, 1),
        "next-sentence-prediction": (2, 2), "rerank": (2, 1),
    }.get(kind, (2, 3))  # fmt: skip
    student, teacher = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])

    def distance(one: Tensor) -> float:
        return float(soft_loss(task, one, teacher, mask, torch.zeros(2), 2.0))

    assert distance(teacher) == pytest.approx(0.0, abs=1e-6)
    assert distance(student) > 2 * distance((student + teacher) / 2) > 0
    if len(shape) > 1 and shape[1] == 5:
        padding = student.clone()
        padding[0, 3:] = 50.0
        assert distance(padding) == pytest.approx(distance(student), rel=1e-5)


def test_every_task_that_is_distilled_on_labelled_rows_has_a_soft_loss() -> None:
    assert set(SOFT_LOSSES) == set(TASKS) - {"fill-mask", "sparse-embedding", "feature-extraction"}


def test_invalid_settings_are_refused() -> None:
    problems = r"soft_weight must not be negative, found -1; temperature must be positive, found 0"
    with pytest.raises(TrainingError, match=problems):
        DistillationSettings(soft_weight=-1, temperature=0)
    with pytest.raises(TrainingError, match="the teacher has no effect"):
        DistillationSettings(soft_weight=0)
