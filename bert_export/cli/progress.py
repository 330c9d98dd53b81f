"""Progress of long commands on stderr: a live bar in a terminal, a line for each stage elsewhere."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from bert_export.cli.terminal import is_terminal, rich_console

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["RunEstimate", "count_progress", "progress_printer", "stage_progress"]

_MEASURING = re.compile(r"timing|warming up|measuring the peak|running LoadGen|concurrent|round (\d+) of (\d+)$")
"""Stages in which nothing is drawn: it would take time from what is measured."""


def progress_printer() -> Callable[[str], None]:
    """Return a progress callback that prints each stage on stderr, with the seconds since now."""
    start = time.monotonic()

    def report_progress(stage: str) -> None:
        click.echo(_format_line(time.monotonic() - start, stage), err=True)

    return report_progress


def stage_progress(expected_s: Mapping[str, float] | None = None) -> AbstractContextManager[Callable[[str], None]]:
    """Return a context with a progress callback: one bar per stage in a terminal, and the time left for all of them.

    Args:
        expected_s: the stages in order, by the start of their names, with the seconds that they take somewhere: their
            ratios are what counts.
    """
    if not is_terminal(sys.stderr):
        return nullcontext(progress_printer())
    return _drawn_stages(RunEstimate(expected_s or {}))


@contextmanager
def count_progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the number of items done since its last call; draw a bar if stderr is a terminal.

    Args:
        label: what is being done.
        total: the number of items; `None` if that is unknown.
    """
    if not is_terminal(sys.stderr):
        click.echo(label, err=True)
        yield lambda done: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    name = "{task.description}"
    columns = (
        (SpinnerColumn(), name, "{task.completed}", TimeElapsedColumn())
        if total is None
        else (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "left")
    )
    with Progress(*columns, console=rich_console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


class RunEstimate:
    """The time left for a run of stages, from the pace of the stages so far.

    Args:
        expected_s: see `stage_progress`.
        clock: the time in seconds.
    """

    def __init__(self, expected_s: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self._expected_s = dict(expected_s)
        self._clock = clock
        self.start_s = self.stage_start_s = clock()
        self._stage: str | None = None
        self._done_s = self._done_expected_s = 0.0

    def start(self, stage: str) -> None:
        """Begin a stage, which ends the one before."""
        now = self._clock()
        if self._stage is not None:
            self._done_s += now - self.stage_start_s
            self._done_expected_s += self._expected_s[self._stage]
        self.stage_start_s = now
        self._stage = next((name for name in self._expected_s if stage.startswith(name)), None)

    def left_s(self, fraction: float | None = None) -> float | None:
        """Return the seconds left for all stages; `None` before there is a pace, and in an unknown stage.

        Args:
            fraction: how much of the stage is done, if that is known.
        """
        if self._stage is None or self._done_expected_s == 0:
            return None
        names = list(self._expected_s)
        later_s = sum(self._expected_s[name] for name in names[names.index(self._stage) + 1 :])
        pace = self._done_s / self._done_expected_s
        in_stage_s = self._clock() - self.stage_start_s
        if fraction:
            stage_left_s = in_stage_s * (1 - fraction) / fraction
            pace = max(pace, in_stage_s / fraction / self._expected_s[self._stage])
        else:
            stage_left_s = max(self._expected_s[self._stage] * pace - in_stage_s, 0)
        return stage_left_s + later_s * pace


@contextmanager
def _drawn_stages(estimate: RunEstimate) -> Iterator[Callable[[str], None]]:
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class TimeColumn(ProgressColumn):
        """The seconds since the start, and about how many are left."""

        def render(self, task: Task) -> Text:
            fraction = task.completed / task.total if task.total else None
            passed, left = time.monotonic() - estimate.start_s, estimate.left_s(fraction)
            return Text(_format_time(passed) + ("" if left is None else f", about {_format_time(left)} left"))

    name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), name, BarColumn(bar_width=20), TimeColumn(table_column=Column(no_wrap=True)))
    progress = Progress(*columns, console=rich_console(stderr=True), transient=True, refresh_per_second=4)
    reporter = _DrawnStages(progress, estimate)
    try:
        yield reporter
    finally:
        reporter.finish()


class _DrawnStages:
    """A progress callback that draws the current stage, with its steps where it reports them."""

    def __init__(self, progress: "Progress", estimate: RunEstimate) -> None:
        self._progress = progress
        self._estimate = estimate
        self._task = progress.add_task("", total=None)
        self._stage: str | None = None
        self._rounds_start_s = 0.0

    def __call__(self, stage: str) -> None:
        if stage.startswith("warning: "):
            self._print(click.style(stage, fg="yellow"))
            return
        self._end_stage()
        self._estimate.start(stage)
        if (measuring := _MEASURING.match(stage)) is not None:
            self._progress.stop()
            self._print(_format_line(time.monotonic() - self._estimate.start_s, stage + self._rounds_left(measuring)))
            return
        self._stage = stage
        self._progress.update(self._task, description=stage, completed=0, total=None)
        self._progress.start()

    def step(self, done: int, total: int) -> None:
        """Show how many steps of the stage are done."""
        self._progress.update(self._task, completed=done, total=total)

    def finish(self) -> None:
        """Remove the bar, and leave a line for the last stage."""
        self._end_stage()
        self._progress.stop()

    def _end_stage(self) -> None:
        """Leave a line for the stage that was drawn, with the seconds that it began at."""
        if self._stage is not None:
            began_s = self._estimate.stage_start_s - self._estimate.start_s
            self._print(_format_line(began_s, self._stage))
            self._stage = None

    def _print(self, line: str) -> None:
        from rich.text import Text

        self._progress.console.print(Text.from_ansi(line))

    def _rounds_left(self, measuring: re.Match[str]) -> str:
        """Return the time left in rounds of measurements, all of which take the same time."""
        if measuring[1] is None:
            return ""
        done, total = int(measuring[1]) - 1, int(measuring[2])
        if done == 0:
            self._rounds_start_s = time.monotonic()
            return ""
        left_s = (time.monotonic() - self._rounds_start_s) / done * (total - done)
        return f", about {_format_time(left_s)} left"


def _format_line(passed_s: float, stage: str) -> str:
    return f"{passed_s:6.1f} s  {stage}"


def _format_time(seconds: float) -> str:
    """Format seconds as minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
