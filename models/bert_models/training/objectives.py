"""What each task's head is trained on: targets as arrays, and the loss."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bert_runtime.tasks import Task, TextClassification

__all__ = ["encode_targets", "loss"]


def _problem_type(task: Task) -> str:
    """How the outputs are to be read; other tasks with one class per input are like single-label classification."""
    return task.problem_type if isinstance(task, TextClassification) else "single_label"


def encode_targets(task: Task, targets: Sequence[Any]) -> NDArray[Any]:
    """The targets of examples: class ids int64 [B], or float32 [B, labels], one-hot for every label that holds."""
    kind = _problem_type(task)
    if kind == "single_label":
        return np.array(targets, dtype=np.int64)
    if kind == "regression":
        return np.array(targets, dtype=np.float32)
    assert isinstance(task, TextClassification)
    encoded = np.zeros((len(targets), len(task.labels)), dtype=np.float32)
    for row, labels in enumerate(targets):
        encoded[row, labels] = 1
    return encoded


def loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of a batch: cross-entropy, binary cross-entropy of each label, or squared error."""
    kind = _problem_type(task)
    if kind == "regression":
        return F.mse_loss(outputs.float(), targets)
    if kind == "multi_label":
        return F.binary_cross_entropy_with_logits(outputs.float(), targets)
    return F.cross_entropy(outputs.float(), targets)
