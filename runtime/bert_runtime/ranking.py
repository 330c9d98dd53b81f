"""Documents in the order of their relevance to a query, by any model that gives one score for a pair."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_runtime.errors import InputError
from bert_runtime.inputs import Column, SingleInput, check_column
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.tasks import Outputs, Reranking, Task, TextClassification
from bert_runtime.tasks.reranking import is_truncated, max_logits

__all__ = [
    "RANKING_TASKS",
    "DocumentRanking",
    "RankedDocument",
    "check_top_k",
    "query_pairs",
    "rank_outputs",
    "relevance_logits",
]

RANKING_TASKS: tuple[type[Task], ...] = (Reranking, TextClassification)
"""Tasks whose models may give one score for a pair, see `relevance_logits`."""

_NEGATION = r"(?:no|not|non|un|ir|in|dis)[-_ ]*"
"""Beginning of the name of a label that negates the other one: `not_entailment`, `irrelevant`."""


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document, and how relevant it is to the query.

    As JSON: `{"index": 2, "score": 0.98, "document": "Cards arrive within a week."}`.
    """

    index: int
    """The document's number among those that were given, from 0."""
    score: float
    """Relevance: the logit, or its sigmoid, as the model's `activation` says; higher is more relevant."""
    logit: float = field(repr=False)
    """Raw output of the model; of two labels, the difference of their calibrated logits."""
    document: str
    """The text."""
    truncated: bool = field(default=False, repr=False)
    """Whether the score is for a part of the query or of the document."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document as a JSON object, with `"truncated": true` where it was."""
        truncation = {"truncated": True} if self.truncated else {}
        return {"index": self.index, "score": self.score, "document": self.document, **truncation}


class DocumentRanking(ABC):
    """The method `rank` of models; `bert_runtime.Model` has it."""

    task: Task

    @abstractmethod
    def outputs(self, inputs: Sequence[SingleInput], first: int = 0) -> list[Outputs]:
        """Return the raw outputs of inputs, see `bert_runtime.Model.outputs`."""

    def rank(self, query: str, documents: Sequence[str] | Column, *, top_k: int | None = None) -> list[RankedDocument]:
        """Return documents in the order of their relevance to a query, best first.

        A model for rerank tokenizes each text once. Documents that do not fit beside the query are read in windows, of
        which the best one counts, or are truncated, as `model.task.long_documents` says; other models truncate.

        Args:
            query: the query.
            documents: the documents, as a list or another collection in order.
            top_k: how many of the best documents to return; by default all.

        Raises:
            InputError: the model gives no score for a pair, `top_k` is out of range, or a text cannot be processed; the
                index is the document's.
        """
        check_top_k(top_k)
        relevance_logits(self.task, [])  # before anything is computed
        return rank_outputs(self.task, self.outputs(query_pairs(query, documents)), top_k)


def query_pairs(query: str, documents: Sequence[str] | Column) -> list[tuple[str, str]]:
    """Return a query with each of N documents; raise `InputError` for anything that is not texts."""
    if not isinstance(query, str):
        raise InputError(f"expected the query to be a text, found {type(query).__name__}")
    if isinstance(documents, str):
        raise InputError("expected a list of documents, found str; put one document into a list")
    if isinstance(documents, Iterator):
        raise InputError(
            f"expected a list of documents, found {type(documents).__name__}; put the documents into a list, since all "
            "are compared"
        )
    check_column(list(documents) if isinstance(documents, tuple) else documents)  # a tuple is no pair here
    pairs = [(query, value.as_py() if hasattr(value, "as_py") else value) for value in documents]
    for index, (_, document) in enumerate(pairs):
        if not isinstance(document, str):
            raise InputError(
                f"expected a document to be a text, found {type(document).__name__}: {document!r:.60}", index
            )
    return pairs


def check_top_k(top_k: int | None) -> None:
    """Raise `InputError` unless a number of documents to return is at least 1, or `None` for all."""
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise InputError(f"top_k must be a whole number of at least 1, found {top_k!r:.50}")


def rank_outputs(task: Task, outputs: Sequence[Outputs], top_k: int | None = None) -> list[RankedDocument]:
    """Return the documents of N pairs, best first; of equal scores in the order that they were given.

    Args:
        task: the model's task.
        outputs: its raw outputs for the pairs of one query.
        top_k: how many to return; by default all.

    Raises:
        InputError: see `relevance_logits`.
    """
    logits = relevance_logits(task, outputs)
    is_logit = task.activation == "identity" if isinstance(task, Reranking) else _is_regression(task)
    scores = logits if is_logit else sigmoid(logits)
    return [
        RankedDocument(
            index,
            float(scores[index]),
            float(logits[index]),
            outputs[index].input.text_pair or "",
            is_truncated(outputs[index]),
        )
        for index in np.argsort(-logits, kind="stable")[:top_k].tolist()
    ]


def _is_regression(task: Task) -> bool:
    return isinstance(task, TextClassification) and task.problem_type == "regression"


def relevance_logits(task: Task, outputs: Sequence[Outputs]) -> FloatArray:
    """Return one raw score for each of N pairs: float32 [N]; higher is more relevant.

    A model for rerank, or a classifier of one number or one label, gives it. Of two exclusive labels, the score is the
    positive one's calibrated logit minus the other's, whose sigmoid is the label's probability. The second label is
    the positive one, as in most data sets (0: no, 1: yes), unless its name negates the first (`entailment`,
    `not_entailment`).

    Args:
        task: the model's task.
        outputs: its raw outputs for N pairs.

    Raises:
        InputError: the task gives something else than one score.
    """
    if isinstance(task, Reranking):
        return max_logits(outputs)
    if not isinstance(task, TextClassification):
        raise InputError(
            "expected a model for rerank, or a text-classification model of pairs with one score, found one for "
            f"{task.name}"
        )
    if len(task.labels) == 1:
        return _stack(outputs, 1)[:, 0]
    if len(task.labels) == 2 and task.problem_type == "single_label":
        first, second = task.labels
        negated = re.fullmatch(_NEGATION + re.escape(first), second, re.IGNORECASE) is not None
        logits = task.calibrated(_stack(outputs, 2))
        return logits[:, 0] - logits[:, 1] if negated else logits[:, 1] - logits[:, 0]
    raise InputError(
        f"expected a model of pairs with one score (one number, one label, or two exclusive labels), found "
        f"{len(task.labels)} labels ({task.problem_type})"
    )


def _stack(outputs: Sequence[Outputs], num_labels: int) -> FloatArray:
    """Return the logits of N inputs [N, labels], also where N is 0."""
    return np.array([output.arrays[0] for output in outputs], dtype=np.float32).reshape(-1, num_labels)
