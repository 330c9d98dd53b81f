"""Losses in which classes count differently, or are not quite certain, and the tasks that can have them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_models.errors import TrainingError
from bert_models.training.objectives import build_objective
from bert_models.training.settings import TrainSettings
from bert_runtime.tasks import Task, TextClassification, TokenClassification

__all__ = ["balanced_weights", "check_loss_settings", "class_weights"]


def check_loss_settings(task: Task, settings: TrainSettings) -> None:
    """Raises `TrainingError` for settings of the loss that have no meaning where no one class of several is right."""
    chosen = {"label_smoothing": settings.label_smoothing, "class_weights": settings.class_weights}
    refused = [name for name, value in chosen.items() if value]
    if not refused or build_objective(task).classes:
        return
    kind = task.name
    if isinstance(task, TextClassification):
        kind += f" with problem_type {task.problem_type}"
    if isinstance(task, TokenClassification):
        kind += " with crf"
    raise TrainingError(
        f"{kind} has no use for {' and '.join(refused)}; expected text-classification with problem_type single_label, "
        "token-classification without crf, or next-sentence-prediction"
    )


def class_weights(task: Task, targets: Sequence[NDArray[np.int64]], settings: TrainSettings) -> Tensor | None:
    """The weights that `settings` ask for, float32 [L], of a training file's `targets`."""
    if settings.class_weights is None:
        return None
    return balanced_weights(targets, build_objective(task).classes)


def balanced_weights(targets: Sequence[NDArray[np.int64]], classes: int) -> Tensor:
    """Inverse frequencies of the classes in `targets`, 1 on average, float32 [L].

    Negative targets are no classes. A class that never occurs has the weight 1 and is left out of the average.
    """
    found = np.concatenate([target.reshape(-1) for target in targets])
    counts = np.bincount(found[found >= 0], minlength=classes)
    seen = counts > 0
    weights = np.ones(classes)
    weights[seen] = 1 / counts[seen]
    weights[seen] /= weights[seen].mean()
    return torch.tensor(weights, dtype=torch.float32)
