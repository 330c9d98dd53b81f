"""The gate: judge what the search has chosen on rows that it never saw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_export.compression.goal import Goal
from bert_export.compression.journal import Journal
from bert_export.compression.search import Measured
from bert_export.paired_bootstrap import is_within

__all__ = ["Choice", "choose", "remember_gate"]

_NEARLY = 0.9
"""Share of the greatest speed from which on a bundle counts as nearly as fast (a judgement): of three of STS-B's that
were 1.83, 1.84 and 1.87 times as fast where 2 was asked, the first lost 1.4 % and the others over 25 %."""


@dataclass(frozen=True)
class Choice:
    """The bundle that a search ends with."""

    measured: Measured
    gate: dict[str, Any]
    """Its comparison with the uncompressed model on the gate's rows."""
    passed: bool
    reason: str
    attempts: int
    """How many bundles the gate has judged, those of interrupted runs included. After the first, its rows are no
    longer unseen."""


def choose(goal: Goal, measured: Sequence[Measured], judge: Callable[[Measured], dict[str, Any]]) -> Choice | None:
    """Choose a bundle by the user's rule, and let the gate judge it.

    With a least speed-up, the bundle of the least loss on the search's rows among those that are fast enough is chosen;
    without any, among those that are nearly as fast as the fastest. With a maximum drop, too, its loss on the gate's
    rows must be within that. With a maximum drop alone, those within it on the search's rows are judged from the
    fastest to the slowest until one passes; without any, the one of the least loss is judged.

    Args:
        goal: the rule.
        measured: all bundles that were exported and measured.
        judge: compares a bundle with the uncompressed model on the gate's rows; `attempts` is the number of bundles
            that they have judged with it.

    Returns:
        The choice; `None` without any bundle.
    """
    if not measured:
        return None
    if goal.speedup is not None:
        return _choose_by_speed(goal.speedup, goal.max_drop, measured, judge)
    assert goal.max_drop is not None
    return _choose_by_drop(goal.max_drop, measured, judge)


def _choose_by_speed(
    speedup: float, max_drop: float | None, measured: Sequence[Measured], judge: Callable[[Measured], dict[str, Any]]
) -> Choice:
    fast = [found for found in measured if found.speedup >= speedup]
    nearly = _NEARLY * max(found.speedup for found in measured)
    near = [found for found in measured if found.speedup >= nearly]
    best = min(fast or near, key=lambda found: found.drop_percent)
    gate = judge(best)
    limit = "; no limit of the loss was asked for" if max_drop is None else f" where {max_drop:g} % is allowed"
    reason = (
        f"measured {best.speedup:.2f}× as fast where {speedup:g}× is asked; {_describe(gate)}{limit}"
        f"{_earlier_judgements(gate)}"
    )
    is_good = max_drop is None or is_within(gate["drop_percent"], max_drop)
    return Choice(best, gate, bool(fast) and is_good, reason, gate["attempts"])


def _choose_by_drop(
    max_drop: float, measured: Sequence[Measured], judge: Callable[[Measured], dict[str, Any]]
) -> Choice:
    candidates = sorted(
        (found for found in measured if is_within(found.drop_percent, max_drop) and found.speedup > 1),
        key=lambda found: -found.speedup,
    )
    judged: list[Choice] = []
    for found in candidates or [min(measured, key=lambda found: found.drop_percent)]:
        gate = judge(found)
        passed = bool(candidates) and is_within(gate["drop_percent"], max_drop)
        reason = f"{_describe(gate)} where {max_drop:g} % is allowed; measured {found.speedup:.2f}× as fast"
        if not candidates:
            reason += (
                f"; it lost {found.drop_percent:.2f} % of the search's rows, where no faster one is within the limit"
            )
        reason += _earlier_judgements(gate)
        judged.append(Choice(found, gate, passed, reason, gate["attempts"]))
        if passed:
            return judged[-1]
    best = min(judged, key=lambda choice: float(choice.gate["drop_percent"]))
    return replace(best, attempts=max(choice.attempts for choice in judged))


def remember_gate(journal: Journal, checkpoint: str, compare: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a checkpoint's comparison on the gate's rows, with the number of bundles that they have judged so far.

    Args:
        journal: remembers comparisons; those of earlier runs count.
        checkpoint: the name that the comparison is remembered by.
        compare: compares the checkpoint's bundle, unless that is remembered.
    """
    gate = journal.remember(f"gate {checkpoint}", compare)
    return {**gate, "attempts": journal.count("gate ")}


def _describe(gate: dict[str, Any]) -> str:
    low, high = gate["drop_percent_interval"]
    return (
        f"{gate['metric']} {gate['compressed']:.4f} against {gate['uncompressed']:.4f} of the uncompressed INT8 on "
        f"{gate['rows']} rows that the search never saw, a loss of {gate['drop_percent']:.2f} % "
        f"(95 % interval {low:.2f} to {high:.2f})"
    )


def _earlier_judgements(gate: dict[str, Any]) -> str:
    """Say that the gate's rows are no longer unseen, if so."""
    before = gate["attempts"] - 1
    return f"; these rows have judged {before} other bundle{'s' if before > 1 else ''} before" if before else ""
