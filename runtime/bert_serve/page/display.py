"""Results as the page draws them: a `kind` that names the drawing, and its data."""

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any, cast

import numpy as np

from bert_runtime.cascade import answered_by
from bert_runtime.numerics import softmax
from bert_runtime.similarity import cosine, similarity_matrix
from bert_runtime.tasks import (
    Answers,
    Classification,
    Embedding,
    Entities,
    Fillings,
    FillMask,
    MultiLabelClassification,
    NextSentence,
    NextSentencePrediction,
    QuestionAnswering,
    Regression,
    Relevance,
    ReplacedTokenDetection,
    ReplacedTokens,
    Result,
    SparseEmbedding,
    SparseVector,
    Task,
    TokenVectors,
)

__all__ = ["display_options", "display_results"]

_TOP_K = 10
"""Answers and filled-in tokens to choose from on the page."""

_TOP_WEIGHTS = 30
"""Weights of a sparse embedding that the page shows."""


_MAX_TOKENS = 40
"""Tokens that the page compares with each other."""


def display_options(task: Task) -> dict[str, Any]:
    """Return the decoding options with which the page asks for results: some more than one to choose from."""
    if isinstance(task, FillMask):
        return {"top_k": max(task.top_k, _TOP_K)}
    if isinstance(task, QuestionAnswering):
        return {"top_k": min(task.n_best, _TOP_K)}
    if isinstance(task, SparseEmbedding):
        return {"top_k": min(task.top_k or _TOP_WEIGHTS, _TOP_WEIGHTS)}
    return {}


def display_results(results: Sequence[Result], task: Task) -> dict[str, Any]:
    """Return the results of all inputs as one JSON object; several inputs are those of sentence-embedding."""
    if isinstance(results[0], Embedding):
        return _display_embeddings([cast(Embedding, result) for result in results])
    return _display(results[0], task) | answered_by(results[0])


def _display_embeddings(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    vectors = np.stack([embedding.vector for embedding in embeddings])
    rows, columns = np.indices((len(vectors), len(vectors))).reshape(2, -1)
    matrix = cosine(vectors[rows], vectors[columns]).reshape(len(vectors), -1)
    return {"kind": "similarity", "matrix": matrix, "vectors": vectors[:1]}


@singledispatch
def _display(result: Result, task: Task) -> dict[str, Any]:
    return {"kind": "other", "value": result.to_dict()}


@_display.register
def _(result: Classification, task: Task) -> dict[str, Any]:
    return _labels(result.top(), [result.label])


@_display.register
def _(result: MultiLabelClassification, task: Task) -> dict[str, Any]:
    order = np.argsort(-result.scores, kind="stable")
    scored = [(result.labels[index], float(result.scores[index])) for index in order]
    return _labels(scored, [label for label, _ in result.chosen])


@_display.register
def _(result: NextSentence, task: Task) -> dict[str, Any]:
    labels = cast(NextSentencePrediction, task).labels
    scored = zip(labels, softmax(result.logits).tolist(), strict=True)
    return _labels(sorted(scored, key=lambda pair: -pair[1]), [result.label])


def _labels(scored: Iterable[tuple[str, float]], chosen: Sequence[str]) -> dict[str, Any]:
    """Return labels with their probabilities, best first."""
    items = [{"label": label, "score": score, "chosen": label in chosen} for label, score in scored]
    return {"kind": "labels", "items": items}


@_display.register
def _(result: Regression, task: Task) -> dict[str, Any]:
    numbers = zip(result.labels, result.values.tolist(), strict=True)
    return {"kind": "numbers", "items": [{"label": label, "score": value} for label, value in numbers]}


@_display.register
def _(result: SparseVector, task: Task) -> dict[str, Any]:
    weights = zip(result.tokens, result.weights.tolist(), strict=True)
    return {"kind": "numbers", "items": [{"label": token, "score": weight} for token, weight in weights]}


@_display.register
def _(result: TokenVectors, task: Task) -> dict[str, Any]:
    vectors = result.vectors[:_MAX_TOKENS]
    labels = result.tokens[:_MAX_TOKENS]
    return {
        "kind": "similarity",
        "matrix": similarity_matrix(vectors, vectors),
        "vectors": vectors[:1],
        "labels": labels,
    }


@_display.register
def _(result: Relevance, task: Task) -> dict[str, Any]:
    return {
        "kind": "numbers",
        "items": [{"label": name, "score": getattr(result, name)} for name in ("score", "logit")],
    }


@_display.register
def _(result: Entities, task: Task) -> dict[str, Any]:
    spans = [
        {"label": entity.label, "score": entity.score, "start": entity.start, "end": entity.end}
        for entity in result.entities
    ]
    return {"kind": "entities", "spans": spans}


@_display.register
def _(result: Answers, task: Task) -> dict[str, Any]:
    spans = [
        {"label": answer.answer, "score": answer.score, "start": answer.start, "end": answer.end}
        for answer in result.answers
    ]
    return {"kind": "answers", "spans": spans}


@_display.register
def _(result: Fillings, task: Task) -> dict[str, Any]:
    masks = [
        [{"label": filling.token_str, "score": filling.score} for filling in fillings] for fillings in result.masks
    ]
    return {"kind": "fillings", "masks": masks, "mask_token": cast(FillMask, task).mask_token}


@_display.register
def _(result: ReplacedTokens, task: Task) -> dict[str, Any]:
    tokens = zip(result.tokens.strings, result.scores.tolist(), result.tokens.offsets.tolist(), strict=True)
    spans = [{"label": token, "score": score, "start": start, "end": end} for token, score, (start, end) in tokens]
    return {"kind": "replaced", "spans": spans, "threshold": cast(ReplacedTokenDetection, task).threshold}
