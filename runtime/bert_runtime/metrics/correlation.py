"""Pearson and Spearman correlation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pearson", "spearman"]


def pearson(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> float:
    """Return the linear correlation of two arrays [N]; NaN if one of them is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else float("nan")


def spearman(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> float:
    """Return the rank correlation of two arrays [N], with the mean rank for ties.

    NaN if one of them is constant or has a NaN, which has no rank.
    """
    if np.isnan(x).any() or np.isnan(y).any():
        return float("nan")
    return pearson(_ranks(x), _ranks(y))


def _ranks(values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return ranks from 0, with the mean rank for equal values: [N] → float64 [N]."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse.ravel()].astype(np.float64)
