"""Successive halving: train many candidates shortly, and ever fewer of them longer (arXiv:1502.07943)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bert_export.compression.candidates import Candidate
from bert_export.compression.planning import Rung

__all__ = ["Trial", "halve", "trial_after"]


@dataclass(frozen=True)
class Trial:
    """A trained candidate."""

    candidate: Candidate
    metric: float
    """The task metric of its PyTorch model on the part of dev that the search may see."""
    checkpoint: str
    """The folder of its checkpoint, relative to that of the search."""
    num_rows: int = 0
    """The most rows that an epoch of its trainings had, see `Rung.num_rows`."""
    narrowed_from: int | None = None
    """Width of the feed-forward blocks that it was trained with before neurons were cut off."""


def trial_after(before: Trial | None, candidate: Candidate, metric: float, checkpoint: str, num_rows: int) -> Trial:
    """Return the trial of a training that went on from another trial, or that one where its checkpoint was kept.

    Args:
        before: the other trial; `None` for a candidate as it was cut.
        candidate: the candidate that was trained; narrower than the one before, or the same.
        metric: its task metric.
        checkpoint: the folder of its checkpoint.
        num_rows: the rows of an epoch.
    """
    if before is None:
        return Trial(candidate, metric, checkpoint, num_rows)
    if checkpoint == before.checkpoint:
        return before
    width = before.narrowed_from if candidate == before.candidate else before.candidate.intermediate_size
    return Trial(candidate, metric, checkpoint, max(num_rows, before.num_rows), width)


def _take_first(trials: Sequence[Trial], rung: Rung) -> tuple[Trial, Candidate, Rung]:
    return trials[0], trials[0].candidate, rung


def halve(
    candidates: Sequence[Candidate],
    rungs: Sequence[Rung],
    train: Callable[[Candidate, Rung, Trial | None], Trial | None],
    prepare_last: Callable[[Sequence[Trial], Rung], tuple[Trial, Candidate, Rung]] = _take_first,
) -> list[Trial]:
    """Train candidates, rung after rung; each goes on from where the rung before left it.

    Args:
        candidates: candidates, the most promising first.
        rungs: how many are trained, and for how long.
        train: trains a candidate as a rung says, from its last trial if there is one; `None` if that failed.
        prepare_last: returns the last of several rungs anew, and what is trained in it: one of the trials so far, best
            first, whose speed and time of an epoch can be known now, as its candidate or as a narrower one.

    Returns:
        The last trial of each candidate, those of the last rung first, the best first within a rung.
    """
    trials: dict[Candidate, Trial] = {}
    reached: dict[Candidate, int] = {}

    def ranked() -> list[Trial]:
        return sorted(trials.values(), key=lambda trial: (-reached[trial.candidate], -trial.metric))

    alive = list(candidates)
    for number, rung in enumerate(rungs):
        starts = {candidate: trials.get(candidate) for candidate in alive[: rung.num_candidates]}
        if 0 < number == len(rungs) - 1:
            best, candidate, rung = prepare_last(ranked(), rung)
            starts = {candidate: best}
        for candidate, before in starts.items():
            trial = train(candidate, rung, before)
            if trial is not None:
                trials[candidate], reached[candidate] = trial, number
        alive = sorted(
            (candidate for candidate in starts if reached.get(candidate) == number),
            key=lambda candidate: -trials[candidate].metric,
        )
        if not alive:
            break

    return ranked()
