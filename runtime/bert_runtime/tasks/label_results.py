"""Results of text-classification: one label, several labels, or numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks.values import Result

__all__ = ["Classification", "MultiLabelClassification", "Regression", "best_labels"]


def best_labels(labels: Sequence[str], scores: FloatArray, k: int | None = None) -> list[tuple[str, float]]:
    """Return the `k` labels of the highest scores with these, best first; all of them by default."""
    return [(labels[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")[:k]]


@dataclass(frozen=True, slots=True, eq=False)
class Classification(Result):
    """The predicted label of one text (single-label).

    As JSON: `{"label": "lost_card", "score": 0.97}`, or with `top_k` a list of such objects, best first.
    """

    label: str
    """The most probable label."""
    score: float
    """Probability of `label`, in [0, 1]: a softmax over all labels."""
    scores: FloatArray = field(repr=False)
    """Probabilities of all labels, in the order of `labels`: float32 [labels]."""
    logits: FloatArray = field(repr=False)
    """Raw outputs: float32 [labels]."""
    labels: tuple[str, ...] = field(repr=False)
    """Names of all labels."""
    top_k: int | None = field(default=None, repr=False, kw_only=True)
    """Number of labels in the JSON; `None`: the best one alone."""

    def to_dict(self) -> Any:
        if self.top_k is None:
            return {"label": self.label, "score": self.score, **self._marks()}
        return [{"label": label, "score": score, **self._marks()} for label, score in self.top(self.top_k)]

    def summary(self) -> str:
        if self.top_k is None:
            return f"{self.label}\t{self.score:.4f}"
        return ", ".join(f"{label} {score:.4f}" for label, score in self.top(self.top_k))

    def top(self, k: int | None = None) -> list[tuple[str, float]]:
        """Return the `k` most probable labels with their probabilities, best first; all of them by default."""
        return best_labels(self.labels, self.scores, k)


@dataclass(frozen=True, slots=True, eq=False)
class MultiLabelClassification(Result):
    """The predicted labels of one text (multi-label).

    As JSON: `{"labels": [{"label": "joy", "score": 0.91}, {"label": "love", "score": 0.64}]}`.
    """

    chosen: tuple[tuple[str, float], ...]
    """Each label whose probability is at least its threshold, with its probability in [0, 1], best first."""
    scores: FloatArray = field(repr=False)
    """Probabilities of all labels, a sigmoid each, in the order of `labels`: float32 [labels]."""
    logits: FloatArray = field(repr=False)
    """Raw outputs: float32 [labels]."""
    labels: tuple[str, ...] = field(repr=False)
    """Names of all labels."""

    def to_dict(self) -> dict[str, Any]:
        labels = [{"label": label, "score": score} for label, score in self.chosen]
        return {"labels": labels, **self._marks()}

    def summary(self) -> str:
        return ", ".join(f"{label} {score:.4f}" for label, score in self.chosen) or "none"


@dataclass(frozen=True, slots=True, eq=False)
class Regression(Result):
    """The predicted numbers of one text (regression).

    As JSON: `{"label": "similarity", "score": 3.8}` for one number, `{"scores": {"valence": 3.1, "arousal": 2.4}}` for
    several.
    """

    values: FloatArray
    """Raw outputs: float32 [labels]."""
    labels: tuple[str, ...] = field(repr=False)
    """Names of the numbers."""

    @property
    def score(self) -> float:
        """The number, of a model that predicts one."""
        if len(self.values) != 1:
            raise AttributeError(f"expected a model of one number, found {len(self.values)}: read them from values")
        return float(self.values[0])

    def to_dict(self) -> dict[str, Any]:
        if len(self.labels) == 1:
            return {"label": self.labels[0], "score": self.score, **self._marks()}
        return {"scores": dict(zip(self.labels, self.values.tolist(), strict=True)), **self._marks()}

    def summary(self) -> str:
        return ", ".join(f"{value:.4f}" for value in self.values)
