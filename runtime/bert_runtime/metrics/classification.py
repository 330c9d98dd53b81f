"""Accuracy and F1 for single-label and multi-label classification."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "best_micro_f1_threshold", "macro_f1", "micro_f1", "multi_label_macro_f1"]


def accuracy(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]]) -> float:
    """Return the share of equal entries of two arrays of class ids [N]."""
    return float(np.mean(predicted == expected))


def macro_f1(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]], num_classes: int) -> float:
    """Return the unweighted mean of the F1 of all classes that occur in `predicted` or `expected`: class ids [N]."""
    confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(confusion, (expected, predicted), 1)
    hits, support = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    return _mean_f1(hits, support)


def micro_f1(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> float:
    """Return the F1 of the true entries of two boolean arrays of one shape; 0 where neither has any.

    For arrays [N] this is the binary F1, for arrays [N, labels] the micro-averaged F1.
    """
    hits, total = int((predicted & expected).sum()), int(predicted.sum() + expected.sum())
    return 2 * hits / total if total else 0.0


def multi_label_macro_f1(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> float:
    """Return the unweighted mean of the F1 of all labels that occur in `predicted` or `expected` [N, labels].

    Labels that occur in neither are left out, because they say nothing about the model; 0 where that is all of them.
    """
    hits, support = (predicted & expected).sum(axis=0), predicted.sum(axis=0) + expected.sum(axis=0)
    return _mean_f1(hits, support) if support.any() else 0.0


def _mean_f1(hits: NDArray[np.integer[Any]], support: NDArray[np.integer[Any]]) -> float:
    """Return the mean of 2·hits / support over classes of non-zero support (predicted plus expected): two [classes]."""
    seen = support > 0
    return float(np.mean(2 * hits[seen] / support[seen]))


def best_micro_f1_threshold(
    probabilities: NDArray[np.floating[Any]], expected: NDArray[np.bool_]
) -> tuple[float, float]:
    """Find the probability threshold that maximizes micro-averaged F1.

    Args:
        probabilities: a probability for each label, of any shape.
        expected: whether each label is right, of the same shape.

    Returns:
        The threshold and its F1. An entry is predicted where its probability is at least the threshold, which is
        midway between two probabilities that occur. Of equally good thresholds the highest is returned; 0.5 and 0
        where no entry of `expected` is true.
    """
    total = int(expected.sum())
    if not total:
        return 0.5, 0.0
    values, inverse = np.unique(probabilities.ravel().astype(np.float64), return_inverse=True)
    hits = np.bincount(inverse, weights=expected.ravel(), minlength=len(values))[::-1].cumsum()
    chosen = np.bincount(inverse, minlength=len(values))[::-1].cumsum()
    scores = 2 * hits / (chosen + total)  # with the 1st, 2nd, … highest probability as the lowest one predicted
    best = int(scores.argmax())
    index = len(values) - 1 - best
    next_lower = values[index - 1] if index else 0.0
    return float((values[index] + next_lower) / 2), float(scores[best])
