"""Statistics of interleaved timings: percentiles of pooled samples, ratios taken round by round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["NOISY_SPREAD", "Speedup", "Timing", "calls_per_burst", "paired_speedup", "summarize"]

NOISY_SPREAD = 1.25
"""A ratio whose p90 over its rounds exceeds its p10 by more than this factor is noisy, and so is that of one round."""

_MAX_CALLS = 1000
"""Calls in one burst at most, however short they are."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Latency of one case on one engine, in milliseconds."""

    samples: int
    """Timed calls over all rounds; p99 of fewer than a hundred is little more than the maximum."""

    p50_ms: float
    p90_ms: float
    p99_ms: float

    round_medians_ms: tuple[float, ...]
    """The median of each round, in order."""


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """How many times faster than the baseline: baseline time over engine time, one ratio per round.

    The two times of a round were taken within a second of each other, so what slows the whole machine cancels.
    """

    median: float
    p10: float
    p90: float

    noisy: bool
    """Whether p90 / p10 exceeds `NOISY_SPREAD`."""


def summarize(rounds: Sequence[Sequence[float]]) -> Timing:
    """Pools the samples (ms) of all rounds, of which there is at least one, each with at least one sample."""
    pooled = np.concatenate([np.asarray(samples, dtype=np.float64) for samples in rounds])
    p50, p90, p99 = np.percentile(pooled, (50, 90, 99)).tolist()
    medians = tuple(float(np.median(samples)) for samples in rounds)
    return Timing(samples=pooled.size, p50_ms=p50, p90_ms=p90, p99_ms=p99, round_medians_ms=medians)


def paired_speedup(engine: Timing, baseline: Timing) -> Speedup:
    """Speed-up of `engine` over `baseline`, which were measured in the same rounds."""
    ratios = np.divide(baseline.round_medians_ms, engine.round_medians_ms)
    p10, median, p90 = np.percentile(ratios, (10, 50, 90)).tolist()
    return Speedup(median=median, p10=p10, p90=p90, noisy=len(ratios) < 2 or p90 > NOISY_SPREAD * p10)


def calls_per_burst(call_ms: float, burst_ms: float) -> int:
    """How many calls of `call_ms` fill a burst of `burst_ms`: at least 1."""
    return max(1, min(_MAX_CALLS, round(burst_ms / max(call_ms, 1e-6))))
