"""Order and statistics of interleaved timings: percentiles of pooled samples, and ratios of medians round by round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = [
    "MIN_ROUNDS",
    "NOISY_SPREAD",
    "Speedup",
    "Timing",
    "calls_per_burst",
    "paired_speedup",
    "rotated",
    "summarize",
]

Item = TypeVar("Item")

NOISY_SPREAD = 1.25
"""A speed-up is noisy if its p90 over the rounds exceeds this factor times its p10."""

MIN_ROUNDS = 3
"""Rounds of a case without which its spread is unknown."""

_MAX_CALLS = 1000
"""Maximum calls in one burst."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Latency of one case on one engine in milliseconds; percentiles are over the pooled calls of all rounds."""

    samples: int
    """Number of timed calls over all rounds; below 100, p99 is little more than the maximum."""

    p50_ms: float
    p90_ms: float
    p99_ms: float

    round_medians_ms: tuple[float, ...]
    """Median of each round's calls, in order."""


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Speed-up over a baseline: percentiles over the rounds of baseline median divided by engine median.

    Both medians of a ratio were measured in the same round, within about a second, so a slowdown of the whole machine
    cancels.
    """

    median: float
    p10: float
    p90: float

    noisy: bool
    """Whether p90 exceeds `NOISY_SPREAD` times p10, or there were fewer than `MIN_ROUNDS`."""


def summarize(rounds: Sequence[Sequence[float]]) -> Timing:
    """Summarize the latencies of one case on one engine.

    Args:
        rounds: latencies in ms by round; at least one round, each with at least one sample.

    Returns:
        Percentiles (linear interpolation) of the pooled samples, and the median of each round.
    """
    pooled = np.concatenate([np.asarray(samples, dtype=np.float64) for samples in rounds])
    p50, p90, p99 = np.percentile(pooled, (50, 90, 99)).tolist()
    medians = tuple(float(np.median(samples)) for samples in rounds)
    return Timing(samples=pooled.size, p50_ms=p50, p90_ms=p90, p99_ms=p99, round_medians_ms=medians)


def paired_speedup(engine: Timing, baseline: Timing) -> Speedup:
    """Return the speed-up of `engine` over `baseline`: p10, median and p90 of the per-round ratios of medians.

    Both must have been measured in the same rounds. Above 1, `engine` is faster.
    """
    ratios = np.divide(baseline.round_medians_ms, engine.round_medians_ms)
    p10, median, p90 = np.percentile(ratios, (10, 50, 90)).tolist()
    return Speedup(median=median, p10=p10, p90=p90, noisy=len(ratios) < MIN_ROUNDS or p90 > NOISY_SPREAD * p10)


def calls_per_burst(call_ms: float, burst_ms: float) -> int:
    """Return how many calls of `call_ms` fill a burst of `burst_ms`: at least 1, at most 1000."""
    return max(1, min(_MAX_CALLS, round(burst_ms / max(call_ms, 1e-6))))


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """Return the items in order, starting with another one in each turn, so that none profits from its position."""
    start = turn % max(1, len(items))
    return [*items[start:], *items[:start]]
