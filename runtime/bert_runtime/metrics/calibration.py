"""Calibration of probabilities: reliability diagrams and the expected calibration error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReliabilityBin", "expected_calibration_error", "reliability_bins"]


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Predictions whose probabilities lie in one interval."""

    lower: float
    """Exclusive, but for the first bin's 0."""
    upper: float
    """Inclusive."""
    count: int
    """Number of predictions, at least 1."""
    mean_probability: float
    frequency: float
    """Share of the predictions that came true."""


def reliability_bins(
    probabilities: NDArray[np.floating[Any]], outcomes: NDArray[np.bool_], num_bins: int = 15
) -> list[ReliabilityBin]:
    """Compare predicted probabilities with frequencies in bins of equal width (Guo et al., arXiv:1706.04599).

    Args:
        probabilities: probability of each prediction, in [0, 1]: [N].
        outcomes: whether each came true: [N].
        num_bins: number of bins; 15 as in the paper.

    Returns:
        The bins that are not empty, lowest first.
    """
    probabilities = probabilities.astype(np.float64)
    edges = np.linspace(0, 1, num_bins + 1)
    index = np.clip(np.searchsorted(edges, probabilities, side="left") - 1, 0, num_bins - 1)
    return [
        ReliabilityBin(
            lower=float(edges[number]),
            upper=float(edges[number + 1]),
            count=int(inside.sum()),
            mean_probability=float(probabilities[inside].mean()),
            frequency=float(outcomes[inside].mean()),
        )
        for number in range(num_bins)
        if (inside := index == number).any()
    ]


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the mean distance of probability and frequency, weighted by the bins' counts; NaN without any."""
    total = sum(item.count for item in bins)
    if not total:
        return float("nan")
    return sum(item.count * abs(item.frequency - item.mean_probability) for item in bins) / total
