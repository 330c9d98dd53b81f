"""Decisions of a variant on a labelled file, in one form for all tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import TextInput

__all__ = ["HITS_AND_MISSES", "Decision", "Judgement", "Numbers", "Table", "join_texts", "lead"]

HITS_AND_MISSES = ("found", "missed", "wrongly found")
"""Columns of a table with a row per label, where a text may have several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision for one unit: a text, a word, a mask or a question."""

    text: str
    span: tuple[int, int] | None = None
    """First character, and the one after the last, of the part that the decision is about; `None` for all of it."""
    expected: str
    predicted: str
    correct: bool
    probability: float | None = None
    """Probability of what is predicted; `None` where the task has none."""
    margin: float | None = None
    """Distance in probability from another decision: to the runner-up, or to the nearest threshold."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Counts of decisions by what was expected and what was predicted."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: NDArray[np.int64]
    """[rows, columns]."""

    @classmethod
    def count(
        cls, rows: Sequence[str], columns: Sequence[str], expected: Sequence[int], predicted: Sequence[int]
    ) -> "Table":
        """Count pairs of indices into `rows` and `columns`."""
        counts = np.zeros((len(rows), len(columns)), dtype=np.int64)
        np.add.at(counts, (np.array(expected, dtype=np.int64), np.array(predicted, dtype=np.int64)), 1)
        return cls(rows=tuple(rows), columns=tuple(columns), counts=counts)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """N numbers that a variant predicts, with those of the file."""

    texts: tuple[str, ...]
    expected: FloatArray
    """[N]."""
    predicted: FloatArray
    """[N]."""
    name: str
    """The name of the predicted numbers, such as `cosine similarity`."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Decisions of one variant on a labelled file. Fields that a task does not have are empty."""

    decisions: tuple[Decision, ...] = ()
    table: Table | None = None
    """The confusion matrix, where rows and columns are the same labels; else outcomes by kind."""
    probabilities: FloatArray = field(default_factory=lambda: np.empty(0))
    """Probability of each prediction that can come true [N], for calibration."""
    outcomes: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    """Whether it did [N]."""
    numbers: Numbers | None = None


def lead(probabilities: FloatArray, index: int) -> float:
    """Return by how much the probability at `index` exceeds the highest other one; negative where it does not."""
    return float(probabilities[index] - np.delete(probabilities, index).max())


def join_texts(*inputs: TextInput) -> str:
    """Return the texts of inputs as one."""
    return " | ".join(part for value in inputs for part in value if part is not None)
