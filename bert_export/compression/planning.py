"""Divide a search's budget: how many candidates are trained, for how many epochs, and on how many rows."""

from dataclasses import dataclass

__all__ = ["Rung", "TrainingRows", "first_rung", "plan_last_rung", "plan_narrowed_rung", "plan_rungs"]

_REDUCTION_FACTOR = 3
"""Reduction factor of successive halving: a third of the candidates goes on to the next rung."""

_MAX_CANDIDATES = 9

_SAMPLE_ROWS = 16_000
"""Given rows that candidates are told apart on, 500 batches of 32; a judgement. Of SST-2's 50,000, they took 2,000 of
3,600 seconds to rank seven candidates."""

_MIN_FINAL_EPOCHS, _MAX_FINAL_EPOCHS = 3, 30
"""Epochs of the last rung: on as many rows as candidates are told apart on at least, and at most (judgements)."""

_EPOCHS_WITH_COPIES = 4
"""Epochs that the last rung has with copies of the given rows. Where more would fit, there are more copies instead
(a judgement, for twelve epochs on the same rows of SST-2 ended no better than the first)."""

_MAX_OVERRUN = 0.1
"""Share of the budget by which narrowing may exceed it; a judgement."""


@dataclass(frozen=True)
class Rung:
    """A round of the search: how many candidates are trained, and for how long."""

    num_candidates: int
    epochs: int
    num_rows: int
    """Rows of an epoch, the first ones that there are: given rows in random order, and then copies."""


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """The rows that candidates may be trained on, and the time that they take."""

    num_given: int
    num_copies: int = 0
    copy_work: float = 1.0
    """Work of training on a copy over that of a given row: copies may be longer."""
    num_answered: int = 0
    """Rows that the uncompressed model has answered, the first ones that there are."""
    answer_s: float = 0.0
    """Seconds that it takes to answer another row, once for all candidates."""

    @property
    def num_sampled(self) -> int:
        """How many given rows candidates are told apart on."""
        return min(self.num_given, _SAMPLE_ROWS)

    def work(self, num_rows: int) -> float:
        """Return the work of an epoch on the first rows, in given rows."""
        return min(num_rows, self.num_given) + self.copy_work * max(num_rows - self.num_given, 0)

    def answers_s(self, num_rows: int) -> float:
        """Return the seconds that the uncompressed model still takes to answer the first rows."""
        return self.answer_s * max(num_rows - self.num_answered, 0)


def first_rung(rows: TrainingRows, num_candidates: int = 1) -> Rung:
    """Return how every candidate begins: with an epoch on a sample of the given rows."""
    return Rung(num_candidates, 1, rows.num_sampled)


def plan_rungs(num_candidates: int, row_s: float, budget_s: float, rows: TrainingRows) -> list[Rung]:
    """Divide a budget: at least half of it is for the last candidate, the rest for as many as it allows.

    What is distilled longer loses less, and the first epochs tell the candidates apart: half of BANKING77's layers came
    within 0.1 % of their teacher after five epochs (bench/results/distillation.json).

    Args:
        num_candidates: how many candidates there are.
        row_s: seconds that a candidate takes for a given row in an epoch.
        budget_s: seconds for all of them, those of the first candidate's `first_rung` included.
        rows: the rows that candidates may be trained on.

    Returns:
        The rungs, of which the first one is a `first_rung` of some candidates; with too small a budget, of one, and no
        other.
    """
    sample_s = rows.num_sampled * row_s
    for number in range(min(num_candidates, _MAX_CANDIDATES), 1, -1):
        rungs = [first_rung(rows, number)]
        if number > _REDUCTION_FACTOR:
            rungs.append(Rung(-(-number // _REDUCTION_FACTOR), 2, rows.num_sampled))
        spent_s = sample_s * sum(rung.num_candidates * rung.epochs for rung in rungs)
        left_s = budget_s - spent_s
        if left_s >= max(spent_s, _MIN_FINAL_EPOCHS * sample_s):
            return [*rungs, plan_last_rung(row_s, left_s, rows)]
    left_s = budget_s - sample_s
    return [first_rung(rows), *([] if left_s < sample_s else [plan_last_rung(row_s, left_s, rows)])]


def plan_last_rung(row_s: float, budget_s: float, rows: TrainingRows) -> Rung:
    """Return how the last candidate is trained: on the given rows, and on copies where they are seen often enough.

    Args:
        row_s: seconds that it takes for a given row in an epoch.
        budget_s: seconds that are left.
        rows: the rows that candidates may be trained on.
    """
    left_s = (budget_s - rows.answers_s(rows.num_given)) / _EPOCHS_WITH_COPIES - rows.num_given * row_s
    fitting = int(left_s / (rows.copy_work * row_s + rows.answer_s / _EPOCHS_WITH_COPIES))
    num_copies = min(fitting, rows.num_copies)
    if num_copies < min(rows.num_given, rows.num_copies):  # not worth the labels, which copies do not have
        num_copies = 0
    num_rows = rows.num_given + num_copies
    left_s = budget_s - rows.answers_s(num_rows)
    epochs = int(left_s / (rows.work(num_rows) * row_s))
    if epochs < 1:
        return Rung(1, 1, max(int(left_s / row_s), rows.num_sampled))
    return Rung(1, min(epochs, _MAX_FINAL_EPOCHS), num_rows)


def plan_narrowed_rung(row_s: float, left_s: float, budget_s: float, rows: TrainingRows) -> Rung | None:
    """Return the epoch that a narrowed candidate is trained for, or `None` where it would take too long.

    Args:
        row_s: seconds that it takes for a given row in an epoch.
        left_s: seconds that are left; without enough for all rows that were trained on, it learns from fewer.
        budget_s: seconds of the whole search, which may be exceeded by a share.
        rows: the rows that candidates may be trained on.
    """
    if row_s * rows.num_sampled > left_s + _MAX_OVERRUN * budget_s:
        return None
    fitting = [number for number in (rows.num_answered, rows.num_given) if rows.work(number) * row_s <= left_s]
    return Rung(1, 1, max([*fitting, rows.num_sampled]))
