"""Timing of calls against each other, and times as text."""

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

__all__ = ["format_ms", "interleaved_medians"]

_Name = TypeVar("_Name", bound=Hashable)


def interleaved_medians(
    calls: Mapping[_Name, Callable[[], object]], rounds: int, *, warm: bool = True
) -> dict[_Name, float]:
    """Return the median time of each call in seconds.

    Args:
        calls: functions to time, by name.
        rounds: how often each is timed; a round makes all calls in turn.
        warm: whether to make each call twice and time the second, since the caches hold the data of the last caller.
    """
    samples: dict[_Name, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if warm:
                call()
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in samples.items()}


def format_ms(value: float) -> str:
    """Format a value with three significant digits and no exponent."""
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"
