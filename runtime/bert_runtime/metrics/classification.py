"""Accuracy and F1 of class ids and of sets of labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "best_micro_f1_threshold", "macro_f1", "micro_f1", "multi_label_macro_f1"]


def accuracy(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]]) -> float:
    """Share of equal entries of two class-id arrays [N]."""
    return float(np.mean(predicted == expected))


def macro_f1(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]], num_classes: int) -> float:
    """Unweighted mean of the F1 of every class that occurs in `predicted` or `expected` [N]."""
    confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(confusion, (expected, predicted), 1)
    hits, support = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    return _mean_f1(hits, support)


def micro_f1(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> float:
    """F1 of the true entries of two boolean arrays of one shape; 0 where neither has any.

    Of arrays [N] this is the binary F1, of arrays [N, labels] the micro-averaged F1.
    """
    hits, total = int((predicted & expected).sum()), int(predicted.sum() + expected.sum())
    return 2 * hits / total if total else 0.0


def multi_label_macro_f1(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> float:
    """Unweighted mean of the F1 of every label that occurs in `predicted` or `expected` [N, labels].

    A label that neither has says nothing about the model and is left out; 0 where that is every label.
    """
    hits, support = (predicted & expected).sum(axis=0), predicted.sum(axis=0) + expected.sum(axis=0)
    return _mean_f1(hits, support) if support.any() else 0.0


def _mean_f1(hits: NDArray[np.integer[Any]], support: NDArray[np.integer[Any]]) -> float:
    """Mean of 2·hits / support over the classes whose support, predicted plus expected, is not zero: two [classes]."""
    seen = support > 0
    return float(np.mean(2 * hits[seen] / support[seen]))


def best_micro_f1_threshold(
    probabilities: NDArray[np.floating[Any]], expected: NDArray[np.bool_]
) -> tuple[float, float]:
    """The threshold that maximises micro-averaged F1, and this F1: two arrays of one shape.

    An entry counts where its probability is at least the threshold, which lies half-way between two probabilities that
    occur. Of equally good ones the highest. Without any true entry no threshold is better than 0.5.
    """
    total = int(expected.sum())
    if not total:
        return 0.5, 0.0
    values, inverse = np.unique(probabilities.ravel().astype(np.float64), return_inverse=True)
    hits = np.bincount(inverse, weights=expected.ravel(), minlength=len(values))[::-1].cumsum()
    chosen = np.bincount(inverse, minlength=len(values))[::-1].cumsum()
    scores = 2 * hits / (chosen + total)  # with the 1st, 2nd, … highest probability as the least that counts
    best = int(scores.argmax())
    place = len(values) - 1 - best
    below = values[place - 1] if place else 0.0
    return float((values[place] + below) / 2), float(scores[best])
