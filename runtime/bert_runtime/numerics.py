"""Array types, and functions that turn logits into probabilities and find the largest scores."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Float32Array", "FloatArray", "IntArray", "best_columns", "sigmoid", "softmax"]

FloatArray = NDArray[np.floating[Any]]
"""Floats of any width: post-processing keeps the dtype that it is given."""

Float32Array = NDArray[np.float32]
"""Weights, activations and outputs of a graph."""

IntArray = NDArray[np.int64]
"""Token ids, masks and indices."""


def softmax(logits: FloatArray) -> FloatArray:
    """Return the softmax over the last axis: float [..., N] → same shape and dtype."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: FloatArray) -> FloatArray:
    """Return the logistic function of each element, without overflow: float [...] → same shape and dtype."""
    small = np.exp(-np.abs(logits))
    probabilities: FloatArray = np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(logits.dtype)
    return probabilities


def best_columns(scores: FloatArray, k: int) -> IntArray:
    """Return the indices of the `k` largest of each row of scores [N, M], of equal ones the first: int64 [N, k].

    They ascend; `k` is at least 1 and at most M.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    worst = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
    is_better, is_equal = scores > worst, scores == worst
    room = k - is_better.sum(axis=1, keepdims=True)
    if (is_equal.sum(axis=1, keepdims=True) > room).any():
        is_equal &= is_equal.cumsum(axis=1) <= room
    return np.nonzero(is_better | is_equal)[1].reshape(-1, k)
