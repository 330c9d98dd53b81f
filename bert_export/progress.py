"""Report progress within a long stage."""

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["StageReporter", "StepCallback", "no_progress", "throttled_steps"]

StepCallback = Callable[[int, int], None]
"""Called with the number of steps that are done, and of all steps."""

_INTERVAL_S = 5.0


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@runtime_checkable
class StageReporter(Protocol):
    """A progress callback that shows the steps of the stage that it was last called with."""

    def __call__(self, stage: str) -> None: ...

    def step(self, done: int, total: int) -> None: ...


def throttled_steps(
    report_progress: Callable[[str], None], stage: str, clock: Callable[[], float] = time.monotonic
) -> StepCallback:
    """Return a callback that reports the steps of a stage every five seconds at most, with the time left.

    Args:
        report_progress: called with a line; a `StageReporter` gets every step instead.
        stage: what is done in steps.
        clock: the time in seconds.
    """
    if isinstance(report_progress, StageReporter):
        return report_progress.step
    start = last = clock()

    def on_step(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if now - last >= _INTERVAL_S and 0 < done < total:
            last = now
            left_s = (now - start) / done * (total - done)
            report_progress(f"{stage}: {done} of {total} steps, about {left_s:.0f} s left")

    return on_step
