"""Losses between the outputs, hidden states and attention of a student and its teacher.

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, A heads, L labels, N any number of
predictions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_models.rotary import Rotation, rotate
from bert_models.training.in_batch_negatives import dot_products
from bert_runtime.tasks import (
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = [
    "SOFT_LOSSES",
    "BatchOutputs",
    "attention_divergence",
    "attention_scores",
    "binary_kl_divergence",
    "cosine_distance",
    "kl_divergence",
    "soft_loss",
]

_MASKED_LOGIT = -1e4
"""Logit of a masked position. An infinite one would give NaN, because teacher and student both have it."""


@dataclass(frozen=True)
class BatchOutputs:
    """Outputs of student and teacher for a batch."""

    student: Tensor
    """Float [B, …]."""
    teacher: Tensor
    """Float [B, …]."""
    tokens: Tensor
    """True at the tokens that count, bool [B, S]."""


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute T² Σ KL(softmax(teacher / T) ‖ softmax(student / T)) over all predictions.

    The factor T² keeps the gradient's magnitude independent of the temperature T (Hinton et al., arXiv:1503.02531,
    section 2).

    Args:
        student: logits, float [N, L].
        teacher: logits, float [N, L].
        temperature: T.

    Returns:
        The sum, float32 [].
    """
    found, expected = (F.log_softmax(logits.float() / temperature, dim=-1) for logits in (student, teacher))
    return F.kl_div(found, expected, reduction="sum", log_target=True) * temperature**2


def binary_kl_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute `kl_divergence` of independent binary decisions; logits of any one shape → float32 []."""
    found, expected = student.float() / temperature, teacher.float() / temperature
    probability = expected.sigmoid()
    return temperature**2 * (
        F.binary_cross_entropy_with_logits(found, probability, reduction="sum")
        - F.binary_cross_entropy_with_logits(expected, probability, reduction="sum")
    )


def cosine_distance(student: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
    """Sum 1 - cos(student, teacher) over tokens, DistilBERT's loss on hidden states (Sanh et al., arXiv:1910.01108).

    Args:
        student: hidden states, float [B, S, H].
        teacher: hidden states, float [B, S, H].
        tokens: the tokens to compare, bool [B, S].

    Returns:
        The sum, float32 [].
    """
    return (1 - F.cosine_similarity(student[tokens].float(), teacher[tokens].float(), dim=-1)).sum()


def attention_divergence(student: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
    """Average KL(teacher ‖ student) of attention distributions over heads and queries.

    This is MiniLM's self-attention distribution transfer (Wang et al., arXiv:2002.10957, section 3.1).

    Args:
        student: attention scores before the softmax, float [B, A, S, S].
        teacher: attention scores before the softmax, float [B, A, S, S].
        tokens: the queries and keys that are not padding, bool [B, S].

    Returns:
        The mean, float32 [].
    """
    keys = tokens[:, None, None, :]
    found, expected = (
        F.log_softmax(scores.float().masked_fill(~keys, _MASKED_LOGIT), -1) for scores in (student, teacher)
    )
    divergence = F.kl_div(found, expected, reduction="none", log_target=True).sum(dim=-1)  # [B, A, S]
    return divergence.mean(dim=1)[tokens].mean()


def _text_classification(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    assert isinstance(task, TextClassification)
    if task.problem_type == "regression":
        return F.mse_loss(outputs.student.float(), outputs.teacher.float())
    if task.problem_type == "multi_label":
        return binary_kl_divergence(outputs.student, outputs.teacher, temperature) / outputs.student.numel()
    return _single_label(outputs, task, temperature)


def _relevance(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    """Compare logits, as cross-encoders are distilled (MSE; Hofstätter et al., arXiv:2010.02666, table 4)."""
    return F.mse_loss(outputs.student.float(), outputs.teacher.float())


def _single_label(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    return kl_divergence(outputs.student, outputs.teacher, temperature) / len(outputs.student)


def _token_classification(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    """Compare the tokens' label scores: for a CRF head, emission scores only; transitions are learned from labels."""
    student, teacher = outputs.student[outputs.tokens], outputs.teacher[outputs.tokens]
    return kl_divergence(student, teacher, temperature) / max(1, len(student))


def _question_answering(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    """Compare the distributions of the start and of the end over the tokens of a window: logits [B, S, 2]."""
    found, expected = (
        logits.masked_fill(~outputs.tokens[..., None], _MASKED_LOGIT).transpose(1, 2).flatten(0, 1)
        for logits in (outputs.student, outputs.teacher)
    )
    return kl_divergence(found, expected, temperature) / len(found)


def _replaced_token_detection(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    student, teacher = outputs.student[outputs.tokens], outputs.teacher[outputs.tokens]
    return binary_kl_divergence(student, teacher, temperature) / max(1, len(student))


def _sentence_embedding(outputs: BatchOutputs, task: Task, temperature: float) -> Tensor:
    """Compare vectors of the same size directly, otherwise the cosine similarities of all pairs in the batch."""
    student, teacher = outputs.student.float(), outputs.teacher.float()
    if student.shape == teacher.shape:
        return F.mse_loss(student, teacher, reduction="sum") / len(student)
    unit = [F.normalize(part, dim=-1) for part in (student, teacher)]
    found, expected = (dot_products(part, part) for part in unit)
    return F.mse_loss(found, expected)


SOFT_LOSSES: Mapping[str, Callable[[BatchOutputs, Task, float], Tensor]] = {
    TextClassification.name: _text_classification,
    TokenClassification.name: _token_classification,
    QuestionAnswering.name: _question_answering,
    NextSentencePrediction.name: _single_label,
    ReplacedTokenDetection.name: _replaced_token_detection,
    SentenceEmbedding.name: _sentence_embedding,
    Reranking.name: _relevance,
}
"""Loss between the outputs of student and teacher, by task.

Fill-mask is distilled from a corpus instead, sparse embeddings are trained, not distilled, and feature extraction is
neither."""


def soft_loss(
    task: Task, student: Tensor, teacher: Tensor, attention_mask: Tensor, targets: Tensor, temperature: float
) -> Tensor:
    """Compute the mean loss between the outputs of student and teacher for a batch.

    Args:
        task: the task of both models.
        student: outputs, float [B, …].
        teacher: outputs, float [B, …].
        attention_mask: 1 at real tokens, 0 at padding, int64 [B, S].
        targets: targets of labelled data; for tasks with labels on tokens, int64 [B, S], they select the tokens to
            compare. Targets of other shapes are not used.
        temperature: divides the logits, see `kl_divergence`.

    Returns:
        The mean, float32 [].
    """
    tokens = attention_mask.bool()
    if task.name in (TokenClassification.name, ReplacedTokenDetection.name) and targets.shape == tokens.shape:
        tokens = targets != IGNORE_INDEX
    return SOFT_LOSSES[task.name](BatchOutputs(student, teacher, tokens), task, temperature)


def attention_scores(
    query: Tensor,
    key: Tensor,
    num_heads: int,
    rotation: Rotation | None = None,
    window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute Q Kᵀ · scale per head, before mask and softmax: projections [B, S, H] → [B, A, S, S].

    Args:
        query: float [B, S, H].
        key: float [B, S, H].
        num_heads: number of heads A.
        rotation: by which queries and keys are rotated, if they are.
        window: largest distance from a query to a key, if there is one; farther keys are masked.
        scale: factor of the scores; `None` means 1 / √D.
    """
    queries, keys = (part.view(*part.shape[:2], num_heads, -1).transpose(1, 2) for part in (query, key))
    if rotation is not None:
        queries, keys = rotate(queries, rotation), rotate(keys, rotation)
    scores = torch.matmul(queries * (queries.shape[-1] ** -0.5 if scale is None else scale), keys.transpose(-1, -2))
    if window is None:
        return scores
    positions = torch.arange(query.shape[1], device=query.device)
    is_far = (positions[None, :] - positions[:, None]).abs() > window
    return scores.masked_fill(is_far, _MASKED_LOGIT)
