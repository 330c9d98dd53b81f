"""Successive halving: train many candidates shortly, and ever fewer of them longer (arXiv:1502.07943)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_export.compression.candidates import Candidate

__all__ = [
    "FIRST_RUNG",
    "Rung",
    "Trial",
    "halve",
    "plan_last_rung",
    "plan_narrowed_rung",
    "plan_rungs",
    "trial_after",
]

_REDUCTION_FACTOR = 3
"""Reduction factor of successive halving: a third of the candidates goes on to the next rung."""

_MIN_FINAL_EPOCHS, _MAX_FINAL_EPOCHS = 3, 30
"""Epochs of the last rung (judgements)."""

_MAX_CANDIDATES = 9

_MAX_OVERRUN = 0.1
"""Share of the budget by which narrowing may exceed it; a judgement."""


@dataclass(frozen=True)
class Rung:
    """A round of the search: how many candidates are trained, and for how long."""

    num_candidates: int
    epochs: int
    all_rows: bool = True
    """Whether they are trained on copies of the given rows, too."""


FIRST_RUNG = Rung(1, 1, all_rows=False)
"""How every candidate begins: with an epoch without copies."""


@dataclass(frozen=True)
class Trial:
    """A trained candidate."""

    candidate: Candidate
    metric: float
    """The task metric of its PyTorch model on the part of dev that the search may see."""
    checkpoint: str
    """The folder of its checkpoint, relative to that of the search."""
    learnt_copies: bool = False
    """Whether it was trained on copies of the given rows, too."""
    narrowed_from: int | None = None
    """Width of the feed-forward blocks that it was trained with before neurons were cut off."""


def trial_after(
    before: Trial | None, candidate: Candidate, metric: float, checkpoint: str, *, with_copies: bool
) -> Trial:
    """Return the trial of a training that went on from another trial, or that one where its checkpoint was kept.

    Args:
        before: The other trial; `None` for a candidate as it was cut.
        candidate: The candidate that was trained; narrower than the one before, or the same.
        metric: Its task metric.
        checkpoint: The folder of its checkpoint.
        with_copies: Whether it was trained on copies of the given rows, too.
    """
    if before is None:
        return Trial(candidate, metric, checkpoint, with_copies)
    if checkpoint == before.checkpoint:
        return before
    width = before.narrowed_from if candidate == before.candidate else before.candidate.intermediate_size
    return Trial(candidate, metric, checkpoint, with_copies or before.learnt_copies, width)


def plan_rungs(
    num_candidates: int, epoch_s: float, budget_s: float, given_share: float, copies_s: float = 0.0
) -> list[Rung]:
    """Divide a budget: at least half of it is for the last candidate, the rest for as many as it allows.

    What is distilled longer loses less, and the first epochs tell the candidates apart: half of BANKING77's layers came
    within 0.1 % of their teacher after five epochs (bench/results/distillation.json).

    Args:
        num_candidates: How many candidates there are.
        epoch_s: Seconds that one epoch of a candidate takes on all rows.
        budget_s: Seconds for all of them, those of the first candidate's `FIRST_RUNG` included.
        given_share: Share of the rows that are no copies: only the last rung is trained on these, too, if the budget
            allows it.
        copies_s: Seconds that the uncompressed model takes to answer the copies, once.

    Returns:
        The rungs, of which the first one is a `FIRST_RUNG` of some candidates; with too small a budget, of one, and no
        other.
    """
    given_s = given_share * epoch_s
    for last_s, once_s in ((epoch_s, copies_s), (given_s, 0.0)):
        for number in range(min(num_candidates, _MAX_CANDIDATES), 1, -1):
            rungs = [replace(FIRST_RUNG, num_candidates=number)]
            if number > _REDUCTION_FACTOR:
                rungs.append(Rung(-(-number // _REDUCTION_FACTOR), 2, all_rows=False))
            spent_s = given_s * sum(rung.num_candidates * rung.epochs for rung in rungs)
            last = _last_rung(last_s, budget_s - spent_s - once_s, all_rows=last_s == epoch_s)
            last_rung_s = last.epochs * last_s + once_s
            if last.epochs >= _MIN_FINAL_EPOCHS and spent_s <= last_rung_s <= budget_s - spent_s:
                return [*rungs, last]
    left_s = budget_s - given_s
    return [FIRST_RUNG] if left_s < given_s else [FIRST_RUNG, plan_last_rung(epoch_s, left_s, given_share, copies_s)]


def plan_last_rung(epoch_s: float, budget_s: float, given_share: float, copies_s: float = 0.0) -> Rung:
    """Return how the last candidate is trained: with copies if there is time for a few epochs.

    Args:
        epoch_s: Seconds that one of its epochs takes on all rows.
        budget_s: Seconds that are left.
        given_share: Share of the rows that are no copies.
        copies_s: See `plan_rungs`.
    """
    if given_share == 1 or budget_s - copies_s >= _MIN_FINAL_EPOCHS * epoch_s:
        return _last_rung(epoch_s, budget_s - copies_s, all_rows=True)
    return _last_rung(given_share * epoch_s, budget_s, all_rows=False)


def plan_narrowed_rung(
    epoch_s: float, left_s: float, budget_s: float, given_share: float, copies_s: float = 0.0
) -> Rung | None:
    """Return the epoch that a narrowed candidate is trained for, or `None` where it would take too long.

    Args:
        epoch_s: Seconds that one of its epochs takes on all rows.
        left_s: Seconds that are left; without enough for all rows, it learns from the given ones.
        budget_s: Seconds of the whole search, which may be exceeded by a share.
        given_share: Share of the rows that are no copies.
        copies_s: See `plan_rungs`.
    """
    if given_share * epoch_s > left_s + _MAX_OVERRUN * budget_s:
        return None
    return Rung(1, 1, all_rows=epoch_s + copies_s <= left_s)


def _last_rung(epoch_s: float, budget_s: float, *, all_rows: bool) -> Rung:
    return Rung(1, min(max(int(budget_s / epoch_s), 1), _MAX_FINAL_EPOCHS), all_rows=all_rows)


def halve(
    candidates: Sequence[Candidate],
    rungs: Sequence[Rung],
    train: Callable[[Candidate, Rung, Trial | None], Trial | None],
    revise_last: Callable[[Candidate, Rung], Rung] = lambda candidate, rung: rung,
) -> list[Trial]:
    """Train candidates, rung after rung; each goes on from where the rung before left it.

    Args:
        candidates: Candidates, the most promising first.
        rungs: How many are trained, and for how long.
        train: Trains a candidate as a rung says, from its last trial if there is one; `None` if that failed.
        revise_last: Returns the last of several rungs anew, from the candidate that has reached it: after the others,
            the time of an epoch is known.

    Returns:
        The last trial of each candidate, those of the last rung first, the best first within a rung.
    """
    trials: dict[Candidate, Trial] = {}
    reached: dict[Candidate, int] = {}
    alive = list(candidates)
    for number, rung in enumerate(rungs):
        if 0 < number == len(rungs) - 1:
            rung = revise_last(alive[0], rung)
        for candidate in alive[: rung.num_candidates]:
            trial = train(candidate, rung, trials.get(candidate))
            if trial is not None:
                trials[candidate], reached[candidate] = trial, number
        alive = sorted(
            (candidate for candidate in alive if reached.get(candidate) == number),
            key=lambda candidate: -trials[candidate].metric,
        )
        if not alive:
            break

    def rank(trial: Trial) -> tuple[Any, ...]:
        return -reached[trial.candidate], -trial.metric

    return sorted(trials.values(), key=rank)
