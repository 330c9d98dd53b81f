"""text-classification: predict one label, several labels or numbers for a text or a pair of texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bert_runtime.errors import DataError
from bert_runtime.metrics import (
    accuracy,
    best_micro_f1_threshold,
    logit_drift,
    macro_f1,
    micro_f1,
    multi_label_macro_f1,
    pearson,
    spearman,
)
from bert_runtime.numerics import FloatArray, sigmoid, softmax
from bert_runtime.records import Record
from bert_runtime.score_calibration import LogitCalibration, quality
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_int, check_number, check_strings
from bert_runtime.tasks.label_results import Classification, MultiLabelClassification, Regression
from bert_runtime.tasks.values import Example, Outputs, Result, stack_single_window

__all__ = ["PROBLEM_TYPES", "TextClassification"]

PROBLEM_TYPES = ("single_label", "multi_label", "regression")
"""One label per text (softmax), any number of labels (a sigmoid each), or a number per label (raw outputs)."""

_MAX_CALIBRATION = 1e6
"""Largest scale or bias of logits. Beyond it, probabilities are 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class TextClassification(Task):
    """Classification or regression of a text or a pair of texts, depending on `problem_type`."""

    labels: tuple[str, ...]
    """Names of the labels, in the order of the logits."""
    problem_type: str = "single_label"
    """One of `PROBLEM_TYPES`."""
    threshold: float = 0.5
    """Minimum probability of a predicted label (multi-label)."""
    thresholds: tuple[float, ...] = ()
    """A threshold per label, in the order of `labels`; overrides `threshold`."""
    top_k: int | None = None
    """Number of labels in the JSON of a result (single-label); `None`: the best one, not in a list."""
    logit_scales: tuple[float, ...] = ()
    """Factors of the logits before the softmax (single-label): one for all labels, or one for each; see
    `bert_runtime.score_calibration`."""
    logit_biases: tuple[float, ...] = ()
    """Terms that are added to the logits then, one for each label."""

    name: ClassVar[str] = "text-classification"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        check_strings("labels", self.labels)
        min_labels = 2 if self.problem_type == "single_label" else 1
        if self.problem_type not in PROBLEM_TYPES:
            raise ValueError(f"expected a problem type of {', '.join(PROBLEM_TYPES)}, found {self.problem_type!r}")
        if len(self.labels) < min_labels:
            raise ValueError(f"expected at least {min_labels} labels, found {list(self.labels)}")
        repeated = sorted(label for label, count in Counter(self.labels).items() if count > 1)
        if repeated:
            raise ValueError(f"labels must be distinct, found more than once: {', '.join(repeated)}")
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(f"expected {len(self.labels)} thresholds, one per label, found {len(self.thresholds)}")
        for threshold in (self.threshold, *self.thresholds):
            check_number("threshold", threshold, 0, 1)
        if self.top_k is not None:
            check_int("top_k", self.top_k, minimum=1)
            if self.problem_type != "single_label":
                raise ValueError(f"top_k is for single-label models, found {self.problem_type}")
        self._check_calibration()

    def _check_calibration(self) -> None:
        """Raise `ValueError` where the scales and biases of logits do not fit the labels."""
        if (self.logit_scales or self.logit_biases) and self.problem_type != "single_label":
            raise ValueError(f"calibrated scores are for single-label models, found {self.problem_type}")
        if len(self.logit_scales) not in (0, 1, len(self.labels)):
            raise ValueError(f"expected 1 or {len(self.labels)} logit scales, found {len(self.logit_scales)}")
        if len(self.logit_biases) not in (0, len(self.labels)):
            raise ValueError(f"expected {len(self.labels)} logit biases, found {len(self.logit_biases)}")
        for scale in self.logit_scales:
            check_number("a logit scale", scale, -_MAX_CALIBRATION, _MAX_CALIBRATION)
        for bias in self.logit_biases:
            check_number("a logit bias", bias, -_MAX_CALIBRATION, _MAX_CALIBRATION)

    @property
    def options(self) -> tuple[str, ...]:
        """The number of labels of a single-label model, the thresholds of a multi-label one."""
        return {"single_label": ("top_k",), "multi_label": ("threshold", "thresholds")}.get(self.problem_type, ())

    @property
    def output_width(self) -> int:
        """One logit per label."""
        return len(self.labels)

    @property
    def metric(self) -> str:
        """Accuracy, micro-averaged F1 or Spearman correlation, by problem type."""
        return {"single_label": "accuracy", "multi_label": "micro_f1", "regression": "spearman"}[self.problem_type]

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal labels for 97 % of the texts, or a Pearson correlation of 0.99 for regression.

        Where calibration went well, INT8 agreed on 99.2 % and more (docs/understand/fidelity.md); on 96.8 % where
        it went wrong. 97 leaves room for chance on a hundred texts.
        """
        return ("pearson", 0.99) if self.problem_type == "regression" else ("label_agreement", 0.97)

    @property
    def reads_first_token_only(self) -> bool:
        """The classification heads of all families use the first token only."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values: thresholds of multi-label models only, a calibration if there is one."""
        settings = super().to_dict()
        if self.problem_type != "multi_label":
            del settings["threshold"], settings["thresholds"]
        for name in ("logit_scales", "logit_biases", "top_k"):  # bundles without are as before there were any
            if not settings[name]:
                del settings[name]
        return settings

    def with_options(self, /, **options: Any) -> Self:
        """Return the task with other values for some of `options`; `threshold` replaces the thresholds per label.

        Raises:
            InputError: see `Task.with_options`.
        """
        cleared = {"thresholds": ()} if "threshold" in options and "thresholds" not in options else {}
        return super().with_options(**(cleared | options if "thresholds" in self.options else options))

    def decode(self, outputs: Outputs) -> Result:
        """Decode the logits [labels] by the problem type."""
        logits = outputs.arrays[0]
        if self.problem_type == "regression":
            return Regression(logits, self.labels, truncated=outputs.truncated)
        if self.problem_type == "multi_label":
            scores = self.probabilities(logits)
            chosen = [(self.labels[i], float(scores[i])) for i in np.flatnonzero(self._chosen(logits))]
            ranked = tuple(sorted(chosen, key=lambda choice: -choice[1]))
            return MultiLabelClassification(ranked, scores, logits, self.labels, truncated=outputs.truncated)
        scores = self.probabilities(logits)
        best = int(scores.argmax())
        label, score = self.labels[best], float(scores[best])
        return Classification(label, score, scores, logits, self.labels, top_k=self.top_k, truncated=outputs.truncated)

    def probabilities(self, logits: FloatArray) -> FloatArray:
        """Return the probability of each label: calibrated and softmax, or a sigmoid each: float [..., labels]."""
        if self.problem_type == "multi_label":
            return sigmoid(logits)
        return softmax(self.calibrated(logits))

    def calibrated(self, logits: FloatArray) -> FloatArray:
        """Return logits with the calibration of a single-label model, as they are without one: float [..., labels]."""
        if not (self.logit_scales or self.logit_biases):
            return logits
        return LogitCalibration(self.logit_scales or (1.0,), self.logit_biases).apply(logits)

    def _chosen(self, logits: FloatArray) -> NDArray[np.bool_]:
        """Return whether each label's probability is at least its threshold: bool of the shape of `logits`."""
        return sigmoid(logits) >= np.array(self.thresholds or self.threshold, dtype=logits.dtype)

    def example(self, record: Record) -> Example:
        inputs = self.inputs(record)
        if self.problem_type == "regression":
            if len(self.labels) != 1:
                raise DataError(
                    f"{record.where}: the model predicts {len(self.labels)} numbers ({', '.join(self.labels)}), but a "
                    "row has one; models of several numbers cannot be trained or evaluated"
                )
            return Example(inputs, [record.number("score" if "score" in record.fields else "label")])
        if self.problem_type == "multi_label":
            return Example(inputs, [self._index(label, record) for label in record.labels()])
        return Example(inputs, self._index(record.label(), record))

    def _index(self, label: str, record: Record) -> int:
        if label not in self.labels:
            shown = ", ".join(self.labels[:10]) + (", …" if len(self.labels) > 10 else "")
            raise DataError(
                f"{record.where}: label {label!r} is not one of the model's {len(self.labels)} labels ({shown})"
            )
        return self.labels.index(label)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        logits = stack_single_window(outputs)
        if self.problem_type == "regression":
            expected = np.array([example.target for example in examples], dtype=np.float64)
            error = float(np.mean((logits - expected) ** 2))
            x, y = logits[:, 0], expected[:, 0]
            return {"spearman": spearman(x, y), "pearson": pearson(x, y), "mean_squared_error": error}
        if self.problem_type == "multi_label":
            truth = np.zeros(logits.shape, dtype=bool)
            for row, example in enumerate(examples):
                truth[row, example.target] = True
            chosen = self._chosen(logits)
            exact = float((chosen == truth).all(axis=-1).mean())
            macro = multi_label_macro_f1(chosen, truth)
            metrics = {"micro_f1": micro_f1(chosen, truth), "macro_f1": macro, "exact_match": exact}
            threshold, best = best_micro_f1_threshold(sigmoid(logits), truth)
            return {**metrics, "best_threshold": threshold, "best_micro_f1": best}
        labels = np.array([example.target for example in examples], dtype=np.int64)
        predicted = self.probabilities(logits).argmax(axis=-1)
        return {
            "accuracy": accuracy(predicted, labels),
            "macro_f1": macro_f1(predicted, labels, len(self.labels)),
        }

    def probability_quality(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        if self.problem_type != "single_label":
            return {}
        labels = np.array([example.target for example in examples], dtype=np.int64)
        return quality(self.probabilities(stack_single_window(outputs)), labels)

    def with_tuned_threshold(self, metrics: Mapping[str, float]) -> Self:
        """Return the task with the threshold that gave the best micro-averaged F1, unless there are `thresholds`."""
        if self.problem_type != "multi_label" or self.thresholds:
            return self
        return replace(self, threshold=metrics["best_threshold"])

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = stack_single_window(outputs), stack_single_window(reference)
        drift = logit_drift(found, expected)
        if self.problem_type == "regression":
            return {"pearson": pearson(found.ravel(), expected.ravel()), **drift}
        if self.problem_type == "multi_label":
            same = float((self._chosen(found) == self._chosen(expected)).all(axis=-1).mean())
        else:
            labels, expected_labels = (self.probabilities(logits).argmax(axis=-1) for logits in (found, expected))
            same = accuracy(labels, expected_labels)
        return {"label_agreement": same, **drift}
