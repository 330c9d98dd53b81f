"""The search as a pure function: which candidates are trained and measured, and which is chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bert_export.compression.candidates import Candidate
from bert_export.compression.halving import Trial, halve
from bert_export.compression.planning import Rung, TrainingRows, first_rung, plan_last_rung, plan_rungs
from bert_export.paired_bootstrap import is_within

__all__ = ["Evaluator", "Measured", "fastest_within_drop", "speed_ladder", "within_speed"]

_LADDER = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
"""Speed-ups that `--max-drop` tries."""

_MAX_MEASURED = 3
"""Trials that are exported and timed before a level of speed is given up."""


@dataclass(frozen=True)
class Measured:
    """A trained candidate as an exported bundle."""

    trial: Trial
    speedup: float
    """Measured speed over that of the uncompressed INT8 model."""
    drop_percent: float
    """Loss of the task metric on the part of dev that the search sees, relative to the uncompressed INT8 model's."""


class Evaluator(Protocol):
    """The interface through which the search trains and measures candidates."""

    @property
    def rows(self) -> TrainingRows:
        """The rows that candidates may be trained on."""

    def pool(self, speedup: float) -> list[Candidate]:
        """Return candidates that are predicted to have at least this speed-up, the most promising first."""

    def plan(self, level: str, compute: Callable[[], list[Rung]]) -> list[Rung]:
        """Return the plan of a level: the one that an interrupted search began with, or a new one."""

    def plan_last(self, level: str, compute: Callable[[], Rung]) -> Rung:
        """Return a level's last rung: the one that an interrupted search began with, or a new one."""

    def row_s(self, candidates: Sequence[Candidate]) -> float:
        """Return the mean seconds that the candidates take for a given row in an epoch."""

    def may_begin(self, level: str) -> bool:
        """Return whether there is time for another level, or an interrupted search had begun with it."""

    def time_left_s(self) -> float:
        """Return the seconds that training may still take."""

    def train(self, level: str, candidate: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        """Train a candidate, from its last trial if there is one; return `None` if that failed."""

    def measure(self, trial: Trial) -> Measured | None:
        """Export a trained candidate, and measure its bundle; return `None` if that failed."""

    def fit_to_speed(self, trial: Trial, speedup: float) -> Candidate | None:
        """Return a trained candidate with as few neurons less as its bundle must lose to be this fast; `measure` it.

        Returns:
            The candidate as it is where it is fast enough; `None` where it is too slow for that or cannot be measured.
        """

    def narrow(self, level: str, found: Measured, speedup: float) -> Trial | None:
        """Cut neurons off a trained candidate that is a little too slow, and train it for another epoch.

        Returns:
            The trial, or `None` where the candidate is too slow for that, there is no time, or the training failed.
        """


def within_speed(evaluator: Evaluator, speedup: float, share: float = 1.0) -> list[Measured]:
    """Search for the best candidate of at least some speed.

    Args:
        evaluator: trains and measures.
        speedup: the least speed-up over the uncompressed model.
        share: the share of the time left that may be used.

    Returns:
        The bundles that were measured, in order, up to the first that is as fast as asked and not worse for having been
        narrowed; empty if no candidate is predicted to be fast enough, or all failed.
    """
    level, candidates = _level(speedup), evaluator.pool(speedup)
    if not candidates:
        return []
    others_s = (1 - share) * evaluator.time_left_s()
    # Before the plan, since it tells how long a row takes: steps of the uncompressed model had told a third of it.
    first = evaluator.train(level, candidates[0], first_rung(evaluator.rows), None)

    def plan() -> list[Rung]:
        spent_s = evaluator.row_s(candidates[:1]) * evaluator.rows.num_sampled
        budget_s = evaluator.time_left_s() + spent_s - others_s
        return plan_rungs(len(candidates), evaluator.row_s(candidates), budget_s, evaluator.rows)

    rungs = evaluator.plan(level, plan)

    def train(candidate: Candidate, rung: Rung, before: Trial | None) -> Trial | None:
        is_first = before is None and candidate == candidates[0]
        return first if is_first else evaluator.train(level, candidate, rung, before)

    def prepare_last(trials: Sequence[Trial], rung: Rung) -> tuple[Trial, Candidate, Rung]:
        # Before the longest training, since neurons that are cut off after it lose some of what it has learnt.
        fitted = ((trial, evaluator.fit_to_speed(trial, speedup)) for trial in trials[:_MAX_MEASURED])
        trial, candidate = next(
            ((trial, found) for trial, found in fitted if found is not None), (trials[0], trials[0].candidate)
        )

        def plan_again() -> Rung:
            return plan_last_rung(evaluator.row_s([candidate]), evaluator.time_left_s() - others_s, evaluator.rows)

        return trial, candidate, evaluator.plan_last(level, plan_again)

    trials = halve(candidates, rungs, train, prepare_last)
    measured: list[Measured] = []
    for number, trial in enumerate(trials[:_MAX_MEASURED], start=1):
        found = evaluator.measure(trial)
        if found is not None and found.speedup < speedup:
            measured.append(found)
            narrower = evaluator.narrow(level, found, speedup)
            found = None if narrower is None else evaluator.measure(narrower)
        measured += [] if found is None else [found]
        if found is None or found.speedup < speedup:
            continue
        others = [other.metric for other in trials[number:_MAX_MEASURED]]
        if found.trial == trial or found.trial.metric >= max(
            others, default=0.0
        ):  # what was narrowed may have lost more
            break
    return measured


def _level(speedup: float) -> str:
    return f"{speedup:g}x"


def speed_ladder(max_speedup: float) -> list[float]:
    """Return the speed-ups to try, up to the one of the smallest candidate."""
    return [speedup for speedup in _LADDER if speedup <= max_speedup]


def fastest_within_drop(evaluator: Evaluator, ladder: Sequence[float], max_drop: float) -> list[Measured]:
    """Search for the fastest candidate whose loss is within a limit, by bisection over the levels of speed.

    Every level has the same share of the time; but for the first, none is begun when it is over. That the loss grows
    with the speed is assumed: where it does not, a faster level may be missed.

    Args:
        evaluator: trains and measures.
        ladder: ascending levels of speed-up.
        max_drop: the limit, in percent of the uncompressed model's metric.

    Returns:
        All bundles that were measured, in order.
    """
    measured: list[Measured] = []
    low, high = 0, len(ladder) - 1
    while low <= high:
        middle = (low + high) // 2
        if measured and not evaluator.may_begin(_level(ladder[middle])):
            break
        levels_left = (high - low + 1).bit_length()
        found = within_speed(evaluator, ladder[middle], 1 / levels_left)
        measured += found
        if any(item.speedup >= ladder[middle] and is_within(item.drop_percent, max_drop) for item in found):
            low = middle + 1
        else:
            high = middle - 1
    return measured
