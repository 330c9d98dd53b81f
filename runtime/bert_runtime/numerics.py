"""The two functions that turn logits into probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FloatArray", "sigmoid", "softmax"]

FloatArray = NDArray[np.floating[Any]]


def softmax(logits: FloatArray) -> FloatArray:
    """Softmax over the last axis: float [..., N] → same shape and dtype."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: FloatArray) -> FloatArray:
    """Logistic function of each element, without overflow: float [...] → same shape and dtype."""
    small = np.exp(-np.abs(logits))
    probabilities: FloatArray = np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(logits.dtype)
    return probabilities
