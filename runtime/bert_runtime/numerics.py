"""Array types, and the two functions that turn logits into probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Float32Array", "FloatArray", "IntArray", "sigmoid", "softmax"]

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
