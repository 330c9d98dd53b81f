"""How far a student's answers are from its teacher's.

Letters in shapes: N answers, L labels, B sequences, S tokens, H hidden size, A heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_runtime.tasks import (
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = ["SOFT_LOSSES", "Answers", "attention_distance", "binary", "categorical", "cosine_distance", "soft_loss"]

_NEVER = -1e4
"""Stands for a logit of probability zero; an infinite one would give NaN where both have it."""


@dataclass(frozen=True)
class Answers:
    """What both computed for a batch, and which tokens count, bool [B, S]."""

    student: Tensor
    teacher: Tensor
    tokens: Tensor


def categorical(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence from the student's distributions to the teacher's, summed; logits [N, L] each.

    Times the temperature squared, so that its gradient does not shrink with it (Hinton et al., section 2).
    """
    found, expected = (F.log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher))
    return F.kl_div(found, expected, reduction="sum", log_target=True) * temperature**2


def binary(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The same for logits that each are a decision of their own, of any one shape."""
    found, expected = student.float() / temperature, teacher.float() / temperature
    probability = expected.sigmoid()
    return temperature**2 * (
        F.binary_cross_entropy_with_logits(found, probability, reduction="sum")
        - F.binary_cross_entropy_with_logits(expected, probability, reduction="sum")
    )


def cosine_distance(student: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
    """1 - cosine between hidden states [B, S, H] where `tokens` bool [B, S] is true, summed."""
    return (1 - F.cosine_similarity(student[tokens].float(), teacher[tokens].float(), dim=-1)).sum()


def attention_distance(student: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
    """Mean over heads and queries of the divergence from the student's attention to the teacher's.

    student, teacher: scores [B, A, S, S] before the softmax; tokens: bool [B, S], the queries and keys that are real.
    """
    keys = tokens[:, None, None, :]
    found, expected = (F.log_softmax(scores.float().masked_fill(~keys, _NEVER), -1) for scores in (student, teacher))
    divergence = F.kl_div(found, expected, reduction="none", log_target=True).sum(dim=-1)  # [B, A, S]
    return divergence.mean(dim=1)[tokens].mean()


def _classification(answers: Answers, task: Task, temperature: float) -> Tensor:
    assert isinstance(task, TextClassification)
    if task.problem_type == "regression":
        return F.mse_loss(answers.student.float(), answers.teacher.float())
    if task.problem_type == "multi_label":
        return binary(answers.student, answers.teacher, temperature) / answers.student.numel()
    return _labels(answers, task, temperature)


def _labels(answers: Answers, task: Task, temperature: float) -> Tensor:
    return categorical(answers.student, answers.teacher, temperature) / len(answers.student)


def _token_labels(answers: Answers, task: Task, temperature: float) -> Tensor:
    """Of a linear chain, the scores of single tokens; the chain itself is learnt from labels."""
    student, teacher = answers.student[answers.tokens], answers.teacher[answers.tokens]
    return categorical(student, teacher, temperature) / max(1, len(student))


def _span(answers: Answers, task: Task, temperature: float) -> Tensor:
    """First and last token of the answer are distributions over the tokens of a window: logits [B, S, 2]."""
    found, expected = (
        each.masked_fill(~answers.tokens[..., None], _NEVER).transpose(1, 2).flatten(0, 1)
        for each in (answers.student, answers.teacher)
    )
    return categorical(found, expected, temperature) / len(found)


def _decisions(answers: Answers, task: Task, temperature: float) -> Tensor:
    student, teacher = answers.student[answers.tokens], answers.teacher[answers.tokens]
    return binary(student, teacher, temperature) / max(1, len(student))


def _vectors(answers: Answers, task: Task, temperature: float) -> Tensor:
    """Vectors themselves where they have one size; where not, the cosines between the texts of the batch."""
    student, teacher = answers.student.float(), answers.teacher.float()
    if student.shape == teacher.shape:
        return F.mse_loss(student, teacher, reduction="sum") / len(student)
    found, expected = (F.normalize(each, dim=-1) @ F.normalize(each, dim=-1).T for each in (student, teacher))
    return F.mse_loss(found, expected)


SOFT_LOSSES: Mapping[str, Callable[[Answers, Task, float], Tensor]] = {
    TextClassification.name: _classification,
    TokenClassification.name: _token_labels,
    QuestionAnswering.name: _span,
    NextSentencePrediction.name: _labels,
    ReplacedTokenDetection.name: _decisions,
    SentenceEmbedding.name: _vectors,
}
"""How each task's answers are compared. Masked tokens are distilled from a corpus instead."""


def soft_loss(
    task: Task, student: Tensor, teacher: Tensor, attention_mask: Tensor, targets: Tensor, temperature: float
) -> Tensor:
    """The mean distance of a batch, float32 [].

    student, teacher: what both computed for the batch [B, …]; attention_mask: int64 [B, S]; targets: those of labelled
    data, which say at what tokens a token classifier is read; of other shapes they are not used.
    """
    tokens = attention_mask.bool()
    if task.name in (TokenClassification.name, ReplacedTokenDetection.name) and targets.shape == tokens.shape:
        tokens = targets != IGNORE_INDEX
    return SOFT_LOSSES[task.name](Answers(student, teacher, tokens), task, temperature)


def attention_scores(query: Tensor, key: Tensor, num_heads: int) -> Tensor:
    """Scaled dot products before mask and softmax: projections [B, S, H] → [B, A, S, S]."""
    queries, keys = (each.view(*each.shape[:2], num_heads, -1).transpose(1, 2) for each in (query, key))
    return torch.matmul(queries * queries.shape[-1] ** -0.5, keys.transpose(-1, -2))
