"""The result of zero-shot classification."""

from dataclasses import dataclass, field
from typing import Any

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Result
from bert_runtime.tasks.label_results import best_labels

__all__ = ["ZeroShotClassification"]


@dataclass(frozen=True, slots=True, eq=False)
class ZeroShotClassification(Result):
    """How well each candidate label fits one text.

    As JSON, best label first: `{"sequence": "I lost my card", "labels": ["banking", "sports"], "scores": [0.9, 0.1]}`.
    """

    label: str
    """The best label."""
    score: float
    """Score of `label`, in [0, 1]."""
    sequence: str = field(repr=False)
    """The text."""
    scores: FloatArray = field(repr=False)
    """Scores of all labels, in the order of `labels`: float32 [labels]. They sum to 1, unless each was judged alone."""
    logits: FloatArray = field(repr=False)
    """Raw outputs of the model for each label's hypothesis: float32 [labels, labels of the model]."""
    labels: tuple[str, ...] = field(repr=False)
    """The candidate labels."""

    def to_dict(self) -> dict[str, Any]:
        ranked = self.top()
        return {
            "sequence": self.sequence,
            "labels": [label for label, _ in ranked],
            "scores": [score for _, score in ranked],
            **self._marks(),
        }

    def summary(self) -> str:
        return f"{self.label}\t{self.score:.4f}"

    def top(self, k: int | None = None) -> list[tuple[str, float]]:
        """Return the `k` best labels with their scores, best first; all of them by default."""
        return best_labels(self.labels, self.scores, k)
