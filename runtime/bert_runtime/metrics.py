"""Metrics as NumPy functions: the trainer, the exporter's gate and `evaluate` all call these.

They live here, not in a library, because `evaluate` runs where only NumPy is installed.
The tests compare each with torchmetrics.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["accuracy", "macro_f1", "micro_f1", "pearson", "spearman"]


def accuracy(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]]) -> float:
    """Share of equal entries of two class-id arrays [N]."""
    return float(np.mean(predicted == expected))


def macro_f1(predicted: NDArray[np.integer[Any]], expected: NDArray[np.integer[Any]], num_classes: int) -> float:
    """Unweighted mean of the F1 of every class that occurs in `predicted` or `expected` [N]."""
    confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(confusion, (expected, predicted), 1)
    hits, support = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    seen = support > 0
    return float(np.mean(2 * hits[seen] / support[seen]))


def micro_f1(predicted: NDArray[np.bool_], expected: NDArray[np.bool_]) -> float:
    """F1 of the true entries of two boolean arrays of one shape; 0 where neither has any."""
    hits, total = int((predicted & expected).sum()), int(predicted.sum() + expected.sum())
    return 2 * hits / total if total else 0.0


def pearson(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> float:
    """Linear correlation of two arrays [N]; NaN where one of them is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else float("nan")


def spearman(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> float:
    """Rank correlation of two arrays [N], ties given their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Ranks from 0, equal values sharing their mean rank: [N] → float64 [N]."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse.ravel()].astype(np.float64)
