"""Relevance of documents to a query, by a text-classification model of pairs that gives one score."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.tasks import Outputs, Task, TextClassification
from bert_serve.serving.engine import Caller
from bert_serve.serving.served_model import ServedModel

__all__ = ["PairScores", "pair_scores", "relevance_logits"]

_NEGATION = r"(?:no|not|non|un|ir|in|dis)[-_ ]*"
"""Beginning of the name of a label that negates the other one: `not_entailment`, `irrelevant`."""


class PairScores(NamedTuple):
    """Relevance of N documents to a query."""

    logits: FloatArray
    """Raw scores, higher is more relevant: float32 [N]."""
    num_tokens: int
    """Tokens of all pairs, special tokens included."""

    @property
    def probabilities(self) -> FloatArray:
        """The sigmoid of each raw score, in [0, 1]: float32 [N]. With two labels, the positive one's softmax."""
        return sigmoid(self.logits)


async def pair_scores(
    served: ServedModel,
    query: str,
    documents: Sequence[str],
    caller: Caller | None = None,
    *,
    truncate: bool = True,
) -> PairScores:
    """Score a query with each of N documents; see `relevance_logits` for what a score is.

    Args:
        served: the model.
        query: first text of every pair.
        documents: second texts.
        caller: the request, whose connection is watched.
        truncate: whether what exceeds the model's maximum may be cut off.

    Raises:
        InputError: the model does not give one score for a pair, or names a document that it cannot process.
        ServeError: the request cannot be answered now, or exceeds a limit; see `bert_serve.errors`.
    """
    engine = served.engine  # one engine for tokenizing and computing, also if the bundle is replaced meanwhile
    relevance_logits(engine.model.task, [])
    pairs = [(query, document) for document in documents]
    with engine.reserve(pairs) as reservation:
        encoded = await engine.encode(pairs, truncate=truncate)
        outputs = await engine.outputs(encoded, caller, reservation)
    num_tokens = sum(len(window) for item in encoded for window in item.windows)
    return PairScores(relevance_logits(engine.model.task, outputs), num_tokens)


def relevance_logits(task: Task, outputs: Sequence[Outputs]) -> FloatArray:
    """Return one raw score for each of N pairs: float32 [N].

    A model of one number or one label gives it. Of two exclusive labels, the score is the positive one's logit minus
    the other's, whose sigmoid is the softmax. The second label is the positive one, as in most data sets (0: no,
    1: yes), unless its name negates the first (`entailment`, `not_entailment`).

    Args:
        task: the model's task.
        outputs: its raw outputs for N pairs.

    Raises:
        InputError: the task gives something else than one score.
    """
    if not isinstance(task, TextClassification):
        raise InputError(f"expected a text-classification model of pairs with one score, found one for {task.name}")
    if len(task.labels) == 1:
        return _stack(outputs, 1)[:, 0]
    if len(task.labels) == 2 and task.problem_type == "single_label":
        first, second = task.labels
        negated = re.fullmatch(_NEGATION + re.escape(first), second, re.IGNORECASE) is not None
        logits = _stack(outputs, 2)
        return logits[:, 0] - logits[:, 1] if negated else logits[:, 1] - logits[:, 0]
    raise InputError(
        f"expected a model of pairs with one score (one number, one label, or two exclusive labels), found "
        f"{len(task.labels)} labels ({task.problem_type})"
    )


def _stack(outputs: Sequence[Outputs], num_labels: int) -> FloatArray:
    """Return the logits of N inputs [N, labels], also where N is 0."""
    return np.array([output.arrays[0] for output in outputs], dtype=np.float32).reshape(-1, num_labels)
