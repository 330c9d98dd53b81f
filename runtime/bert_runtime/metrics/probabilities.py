"""Proper scores of predicted probabilities: the Brier score and the negative log-likelihood."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["brier_score", "negative_log_likelihood"]


def brier_score(probabilities: NDArray[np.floating[Any]], expected: NDArray[np.integer[Any]]) -> float:
    """Return the mean squared distance of probabilities from the truth (Brier, 1950), in [0, 2].

    Args:
        probabilities: probability of each class: [N, classes].
        expected: class ids [N].
    """
    truth = np.eye(probabilities.shape[1])[expected]
    return float(np.mean(np.sum((probabilities.astype(np.float64) - truth) ** 2, axis=1)))


def negative_log_likelihood(probabilities: NDArray[np.floating[Any]], expected: NDArray[np.integer[Any]]) -> float:
    """Return the mean of −ln of the probability of the true class; see `brier_score` for the arguments."""
    true = probabilities[np.arange(len(expected)), expected].astype(np.float64)
    return float(-np.mean(np.log(np.maximum(true, np.finfo(np.float64).tiny))))
