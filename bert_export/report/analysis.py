"""Analysis of predictions for a report: confusion, calibration, changed decisions and scattered numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_export.report.excerpts import Excerpt, excerpt
from bert_export.report.judgements import HITS_AND_MISSES, Decision, Judgement, Numbers, Table
from bert_runtime.metrics import expected_calibration_error, reliability_bins
from bert_runtime.metrics.calibration import ReliabilityBin

__all__ = [
    "Calibration",
    "ConfusedPair",
    "Confusion",
    "Difference",
    "Flip",
    "Guess",
    "LabelScores",
    "Scatter",
    "calibration",
    "confusion",
    "differences",
    "flips",
    "scatter",
]

_MAX_CONFUSIONS = 15
"""Pairs of labels in the list of the most frequent confusions."""

_MAX_POINTS = 2000
"""Points of a scatter plot; more only darken it and lengthen the page."""


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """How well one label is predicted."""

    label: str
    support: int
    """Number of units that have the label."""
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """How often one label is predicted where another is expected."""

    expected: str
    predicted: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Counts of decisions by what was expected and what was predicted, and what follows from them."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    is_square: bool
    """Whether rows and columns are the same labels."""
    most_frequent: tuple[ConfusedPair, ...]
    """The most frequent confusions; of a square table only."""
    labels: tuple[LabelScores, ...]
    """Scores of the labels that occur, lowest F1 first; empty where the table is not of labels."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How well probabilities agree with frequencies."""

    count: int
    """Number of predictions."""
    mean_probability: float
    frequency: float
    """Share of the predictions that came true."""
    expected_calibration_error: float
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The prediction of one variant for a unit."""

    predicted: str
    probability: float | None
    margin: float | None
    correct: bool


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A unit for which a variant predicts something else than the reference."""

    text: Excerpt
    expected: str
    reference: Guess
    variant: Guess


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An input for which a variant predicts another number than the reference."""

    text: Excerpt
    expected: float
    reference: float
    variant: float


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Predicted numbers by expected ones; an even sample where there are many."""

    name: str
    points: tuple[tuple[float, float], ...]
    """Expected and predicted number."""


def confusion(table: Table | None) -> Confusion | None:
    """Summarize a table of counts; `None` without one."""
    if table is None:
        return None
    is_square = table.rows == table.columns
    counts = table.counts.tolist()
    wrong = [
        ConfusedPair(expected=expected, predicted=predicted, count=count)
        for expected, row in zip(table.rows, counts, strict=True)
        for predicted, count in zip(table.columns, row, strict=True)
        if count and expected != predicted and is_square
    ]
    return Confusion(
        rows=table.rows,
        columns=table.columns,
        counts=tuple(map(tuple, counts)),
        is_square=is_square,
        most_frequent=tuple(sorted(wrong, key=lambda pair: -pair.count)[:_MAX_CONFUSIONS]),
        labels=_label_scores(table),
    )


def _label_scores(table: Table) -> tuple[LabelScores, ...]:
    """Return the scores of each label, where the table is a confusion matrix or has one row of hits per label."""
    counts = table.counts
    if table.rows == table.columns:
        hits = np.diag(counts)
        support, predicted = counts.sum(axis=1), counts.sum(axis=0)
    elif table.columns == HITS_AND_MISSES:
        hits, support, predicted = counts[:, 0], counts[:, 0] + counts[:, 1], counts[:, 0] + counts[:, 2]
    else:
        return ()
    rows = zip(table.rows, hits.tolist(), support.tolist(), predicted.tolist(), strict=True)
    scores = [
        LabelScores(
            label=label,
            support=size,
            precision=hit / found if found else 0.0,
            recall=hit / size if size else 0.0,
            f1=2 * hit / (size + found),
        )
        for label, hit, size, found in rows
        if size + found
    ]
    return tuple(sorted(scores, key=lambda item: (item.f1, -item.support)))


def calibration(judgement: Judgement) -> Calibration | None:
    """Compare the probabilities of predictions with their frequencies; `None` where the task has none."""
    if not len(judgement.probabilities):
        return None
    bins = reliability_bins(judgement.probabilities, judgement.outcomes)
    return Calibration(
        count=len(judgement.probabilities),
        mean_probability=float(judgement.probabilities.mean()),
        frequency=float(judgement.outcomes.mean()),
        expected_calibration_error=expected_calibration_error(bins),
        bins=tuple(bins),
    )


def flips(decisions: Sequence[Decision], reference: Sequence[Decision]) -> list[Flip]:
    """Return the units that are decided otherwise than by the reference, those that it was surest of first."""
    found = [
        Flip(text=excerpt(ours.text, ours.span), expected=ours.expected, reference=_guess(theirs), variant=_guess(ours))
        for ours, theirs in zip(decisions, reference, strict=True)
        if ours.predicted != theirs.predicted
    ]
    return sorted(found, key=lambda flip: -(flip.reference.margin or 0))


def _guess(decision: Decision) -> Guess:
    return Guess(
        predicted=decision.predicted,
        probability=decision.probability,
        margin=decision.margin,
        correct=decision.correct,
    )


def scatter(numbers: Numbers | None) -> Scatter | None:
    """Return predicted numbers by expected ones; `None` where the task has none."""
    if numbers is None:
        return None
    step = -(-len(numbers.expected) // _MAX_POINTS)
    pairs = zip(numbers.expected[::step].tolist(), numbers.predicted[::step].tolist(), strict=True)
    return Scatter(name=numbers.name, points=tuple(pairs))


def differences(numbers: Numbers, reference: Numbers) -> list[Difference]:
    """Return all inputs, those whose number differs most from the reference's first."""
    order = np.argsort(-np.abs(numbers.predicted - reference.predicted), kind="stable")
    return [
        Difference(
            text=excerpt(numbers.texts[index]),
            expected=float(numbers.expected[index]),
            reference=float(reference.predicted[index]),
            variant=float(numbers.predicted[index]),
        )
        for index in order
    ]
