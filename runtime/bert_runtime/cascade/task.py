"""The task of a cascade: text-classification whose results say which model answered, and how sure a model is."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, Self

import numpy as np

from bert_runtime.cascade.results import CascadeClassification, CascadeMultiLabelClassification
from bert_runtime.errors import InputError
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.score_calibration import LogitCalibration
from bert_runtime.tasks import Classification, MultiLabelClassification, Outputs, Result, TextClassification

__all__ = ["MODELS", "CascadeTask", "common_logits", "confidence"]

MODELS = ("small", "large")
"""Names of the two models, of their folders, and of `CascadeClassification.model`."""

_EDGE = 1e-6
"""Distance from 0 and 1 that thresholds are kept at, so that their logits are finite."""


class CascadeTask(TextClassification):
    """The large model's task. Raw outputs hold a second array, the index in `MODELS` of the one that answered [1]."""

    @property
    def options(self) -> tuple[str, ...]:
        """None: the threshold of the cascade was chosen with the settings that it has."""
        return ()

    def with_options(self, /, **options: Any) -> Self:
        """Return the task; raise `InputError` for any option, see `options`."""
        if options:
            raise InputError(
                f"a cascade has no options, since its gate judged it as it is; found {', '.join(sorted(options))}; "
                "load its folder small or large to set them"
            )
        return self

    def decode(self, outputs: Outputs) -> Result:
        """Decode logits [labels] of either model, see `common_logits`."""
        model = MODELS[int(outputs.arrays[1][0])]
        result = super().decode(outputs)
        if isinstance(result, MultiLabelClassification):
            return CascadeMultiLabelClassification(**_values(result), model=model)
        assert isinstance(result, Classification), "a cascade has no numbers"
        return CascadeClassification(**_values(result), model=model)


def _values(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in _field_names(type(result))}


@cache
def _field_names(kind: type[Result]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def common_logits(task: TextClassification, reference: TextClassification) -> Callable[[FloatArray], FloatArray]:
    """Return a function from a model's logits to those that `CascadeTask` decodes, float [..., labels] both.

    Single-label logits are calibrated as the model's settings say. Those of several labels are shifted by what the
    model's thresholds are lower or higher than the reference's, so that the reference's decide.

    Args:
        task: the model's task.
        reference: the large model's, whose labels are the same.
    """
    if task.problem_type == "single_label":
        return LogitCalibration(task.logit_scales or (1.0,), task.logit_biases).apply
    biases = threshold_logits(reference) - threshold_logits(task)
    return lambda logits: logits + biases.astype(logits.dtype)


def threshold_logits(task: TextClassification) -> FloatArray:
    """Return the logit of each label's threshold: float64 [labels]."""
    thresholds = np.array(task.thresholds or (task.threshold,) * len(task.labels), dtype=np.float64)
    thresholds = np.clip(thresholds, _EDGE, 1 - _EDGE)
    logits: FloatArray = np.log(thresholds) - np.log1p(-thresholds)
    return logits


def confidence(task: TextClassification, logits: FloatArray) -> FloatArray:
    """Return how sure a model is of each text, in [0, 1].

    Of one label, its probability. Of several, the sigmoid of the smallest distance of a logit from its threshold: the
    probability of the least certain of the decisions, where thresholds are 0.5.

    Args:
        task: the task of the cascade.
        logits: `common_logits` of texts, float [..., labels].

    Returns:
        An array [...].
    """
    if task.problem_type == "single_label":
        # The largest of softmax(logits), in fewer steps: a single text waits for each of them.
        largest: FloatArray = 1 / np.exp(logits - logits.max(axis=-1, keepdims=True)).sum(axis=-1)
        return largest
    return sigmoid(np.abs(logits - threshold_logits(task).astype(logits.dtype)).min(axis=-1))
