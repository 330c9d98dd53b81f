"""text-classification: one label for a text or a pair of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bert_runtime.errors import DataError
from bert_runtime.metrics import accuracy, macro_f1
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, FloatArray, Result, Task, TextInput

__all__ = ["Classification", "TextClassification", "softmax"]


def softmax(logits: FloatArray) -> FloatArray:
    """Softmax over the last axis: float [..., N] → same shape and dtype."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


@dataclass(frozen=True, slots=True, eq=False)
class Classification(Result):
    """The most probable label of one text."""

    label: str
    score: float
    """Probability of `label`, in [0, 1]."""
    scores: FloatArray = field(repr=False)
    """Probabilities of all labels, in the order of `labels` [labels]."""
    logits: FloatArray = field(repr=False)
    """The model's raw outputs [labels]."""
    labels: tuple[str, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "score": self.score}

    def top(self, k: int | None = None) -> list[tuple[str, float]]:
        """The `k` most probable labels with their probabilities, best first; all of them by default."""
        order = np.argsort(-self.scores, kind="stable")[:k]
        return [(self.labels[i], float(self.scores[i])) for i in order]


@dataclass(frozen=True, kw_only=True)
class TextClassification(Task):
    """Single-label classification: softmax over `labels`."""

    labels: tuple[str, ...]
    problem_type: str = "single_label"

    name: ClassVar[str] = "text-classification"
    output: ClassVar[str] = "logits"
    metric: ClassVar[str] = "accuracy"
    agreement_floor: ClassVar[tuple[str, float]] = ("label_agreement", 0.95)

    def __post_init__(self) -> None:
        if self.problem_type != "single_label":
            raise ValueError(f"expected problem type 'single_label', found {self.problem_type!r}")
        if not isinstance(self.labels, tuple) or not all(isinstance(x, str) for x in self.labels):
            raise ValueError(f"expected labels to be a list of strings, found {self.labels!r}")
        if len(self.labels) < 2:
            raise ValueError(f"expected at least two labels, found {list(self.labels)}")
        repeated = sorted({label for label in self.labels if self.labels.count(label) > 1})
        if repeated:
            raise ValueError(f"labels must be distinct, found more than once: {', '.join(repeated)}")

    @property
    def reads_first_row_only(self) -> bool:
        """Every family's classification head starts from the first token."""
        return True

    def decode(self, outputs: FloatArray) -> list[Result]:
        """Logits [B, labels] → the most probable label of each row."""
        scores = softmax(outputs)
        best = scores.argmax(axis=-1)
        return [
            Classification(self.labels[i], float(row_scores[i]), row_scores, row_logits, self.labels)
            for i, row_scores, row_logits in zip(best.tolist(), scores, outputs, strict=True)
        ]

    def example(self, record: Record) -> Example:
        label = record.label()
        if label not in self.labels:
            shown = ", ".join(self.labels[:10]) + (", …" if len(self.labels) > 10 else "")
            raise DataError(
                f"{record.where}: label {label!r} is not one of the model's {len(self.labels)} labels ({shown})"
            )
        return Example((TextInput(record.text(), record.optional_text("text_pair")),), float(self.labels.index(label)))

    def score(self, outputs: FloatArray, examples: Sequence[Example]) -> dict[str, float]:
        expected = np.array([example.target for example in examples], dtype=np.int64)
        predicted = outputs.argmax(axis=-1)
        return {
            "accuracy": accuracy(predicted, expected),
            "macro_f1": macro_f1(predicted, expected, len(self.labels)),
        }

    def agreement(self, outputs: FloatArray, reference: FloatArray) -> dict[str, float]:
        difference = np.abs(outputs - reference)
        return {
            "label_agreement": accuracy(outputs.argmax(axis=-1), reference.argmax(axis=-1)),
            "mean_abs_logit_drift": float(difference.mean()),
            "max_abs_logit_drift": float(difference.max()),
        }
