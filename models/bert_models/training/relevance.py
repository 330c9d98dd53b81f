"""Train rerankers: on labelled pairs, on triples of a query, better and worse documents, or on lists of graded ones.

    rows                                       loss
    pairs, grades in 0 to 1                    binary cross-entropy of the logit
    pairs, other grades                        mean squared error of the logit
    triples                                    cross-entropy of the better document among those of the row
    triples with a score (a teacher's margin)  margin MSE (Hofstätter et al., arXiv:2010.02666)
    lists of documents with grades             LambdaLoss, which bounds nDCG

Letters in shapes: Q rows in the batch, D documents of a row at most, N pairs of a query and a document.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_models.model import TaskModel
from bert_models.training.lambda_loss import graded_pairs, lambda_loss
from bert_models.training.objective import Objective, Target
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Vocabulary
from bert_runtime.tasks.relevance_rows import RelevanceRow, read_relevance_row

__all__ = ["RelevanceObjective", "check_dev_examples", "learns_logits", "relevance_examples"]

_MAX_GRADE = 30.0
"""Largest grade of a list: its gain, 2^grade - 1, is about 10^9."""


class _RelevanceTarget(NamedTuple):
    """Loss and target values of a row of the training file."""

    loss: str
    """A key of `_LOSSES`."""
    values: tuple[float, ...]
    """A grade for each document, or the one margin of a triple."""


def learns_logits(records: Sequence[Record]) -> bool:
    """Return whether a file's grades are learned as logits, whose scale says more than a probability does."""
    return _loss_name(records, [read_relevance_row(record) for record in records]) in ("mse", "margin_mse")


def relevance_examples(records: Sequence[Record]) -> list[Example]:
    """Return the examples of a training file, whose rows are of one kind, see `bert_runtime.tasks.relevance_rows`.

    Raises:
        DataError: a row is malformed or of another kind than the first, or nothing can be learned from the file.
    """
    rows = [read_relevance_row(record) for record in records]
    loss = _loss_name(records, rows)
    if loss == "lambda":
        _check_lists(records, rows)
    if loss == "margin_mse":
        rows = [row._replace(grades=(record.number("score"),)) for record, row in zip(records, rows, strict=True)]
    return [Example(row.pairs, _RelevanceTarget(loss, row.grades)) for row in rows]


def _loss_name(records: Sequence[Record], rows: Sequence[RelevanceRow]) -> str:
    """Return the loss of a file's rows, a key of `_LOSSES`."""
    kind, first = rows[0].kind, records[0]
    for record, row in zip(records, rows, strict=True):
        if row.kind != kind:
            raise DataError(f"{record.where}: expected a {kind} as in {first.where}, found a {row.kind}")
    if kind == "list":
        return "lambda"
    if kind == "triple":
        return "margin_mse" if _have_margins(records, rows) else "cross_entropy"
    grades = {grade for row in rows for grade in row.grades}
    if len(grades) < 2:
        raise DataError(f"{first.path}: expected grades that differ, found only {grades.pop():g}")
    return "binary_cross_entropy" if all(0 <= grade <= 1 for grade in grades) else "mse"


def check_dev_examples(examples: Sequence[Example], where: str) -> None:
    """Raise `DataError` unless a dev file has a relevant document, without which there is no nDCG."""
    if not any(grade >= 1 for example in examples for grade in example.target):
        raise DataError(f"{where}: expected a document of grade 1 or more, which is relevant, found none")


def _have_margins(records: Sequence[Record], rows: Sequence[RelevanceRow]) -> bool:
    """Return whether all triples have a score; raise `DataError` if only some have, or one has more documents."""
    scored = ["score" in record.fields for record in records]
    if any(scored) and not all(scored):
        where = records[scored.index(False)].where
        raise DataError(
            f"{where}: expected a score as in {records[scored.index(True)].where}, or none in the whole file"
        )
    for record, row in zip(records, rows, strict=True):
        if any(scored) and len(row.pairs) != 2:
            raise DataError(
                f"{record.where}: expected one positive and one negative with a score, found {len(row.pairs)}"
            )
    return any(scored)


def _check_lists(records: Sequence[Record], rows: Sequence[RelevanceRow]) -> None:
    for record, row in zip(records, rows, strict=True):
        wrong = next((grade for grade in row.grades if not 0 <= grade <= _MAX_GRADE), None)
        if wrong is not None:
            raise DataError(f"{record.where}: expected grades of 0 to {_MAX_GRADE:g} in a list, found {wrong:g}")
    if not any(len(set(row.grades)) > 1 for row in rows):
        raise DataError(f"{records[0].path}: expected lists of documents whose grades differ, found none")


class RelevanceObjective(Objective):
    """The loss that fits the training file; targets are float32 [1 + D]: the loss's number, then grades or a margin."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        found = example.target
        if not isinstance(found, _RelevanceTarget):  # of a dev file, which has no loss
            found = _RelevanceTarget("binary_cross_entropy", found)
        return np.array([list(_LOSSES).index(found.loss), *found.values], dtype=np.float32)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return _LOSSES[_name(targets)](outputs.float().squeeze(-1), targets[:, 1:])

    def weight(self, targets: Tensor) -> Tensor:
        has_grades = targets.ndim > 1  # else a student learns from its teacher alone
        if not has_grades or _name(targets) != "lambda":
            return super().weight(targets)
        return graded_pairs(targets[:, 1:], targets[:, 1:] != IGNORE_INDEX).sum().float()


def _name(targets: Tensor) -> str:
    """Return the loss of a batch's rows, a key of `_LOSSES`."""
    return list(_LOSSES)[int(targets[0, 0])]


def _binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets[:, 0])


def _mse(logits: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(logits, targets[:, 0])


def _margin_mse(logits: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(logits[0::2] - logits[1::2], targets[:, 0])


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compare a softmax over the documents of each row with the better ones, all alike."""
    is_document = targets != IGNORE_INDEX
    expected = torch.where(is_document, targets, 0.0)
    return F.cross_entropy(_matrix(logits, is_document, -1e9), expected / expected.sum(dim=1, keepdim=True))


def _lambda(logits: Tensor, targets: Tensor) -> Tensor:
    is_document = targets != IGNORE_INDEX
    return lambda_loss(_matrix(logits, is_document, 0.0), targets, is_document)


def _matrix(logits: Tensor, is_document: Tensor, fill: float) -> Tensor:
    """Return the logits [N] of the batch's pairs by row [Q, D], with `fill` where a row has fewer documents."""
    return torch.full(is_document.shape, fill, device=logits.device).masked_scatter(is_document, logits)


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary_cross_entropy": _binary_cross_entropy,
    "mse": _mse,
    "cross_entropy": _cross_entropy,
    "margin_mse": _margin_mse,
    "lambda": _lambda,
}
"""Losses of logits [N] and targets [Q, D]; the order is that of their numbers in targets."""
