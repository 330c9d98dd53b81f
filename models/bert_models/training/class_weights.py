"""Class weights and label smoothing: the tasks that support them, and weights by class frequency."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_models.errors import TrainingError
from bert_models.training.objectives import build_objective
from bert_models.training.settings import TrainSettings
from bert_runtime.tasks import SparseEmbedding, Task, TextClassification, TokenClassification

__all__ = ["balanced_weights", "check_loss_settings", "class_weights"]


def check_loss_settings(task: Task, settings: TrainSettings) -> None:
    """Check that the task's loss has the class weights, label smoothing and regularizers that `settings` ask for.

    Raises:
        TrainingError: the loss is not a cross-entropy over classes of which one is right, or not that of sparse
            embeddings.
    """
    names = ("query_flops", "document_flops")
    flops = [name for name in names if getattr(settings, name) != getattr(TrainSettings, name)]
    if flops and not isinstance(task, SparseEmbedding):
        raise TrainingError(f"{task.name} does not support {' and '.join(flops)}; expected sparse-embedding")
    requested = {"label_smoothing": settings.label_smoothing, "class_weights": settings.class_weights}
    unsupported = [name for name, value in requested.items() if value]
    if not unsupported or build_objective(task).num_classes:
        return
    kind = task.name
    if isinstance(task, TextClassification):
        kind += f" with problem_type {task.problem_type}"
    if isinstance(task, TokenClassification):
        kind += " with crf"
    raise TrainingError(
        f"{kind} does not support {' and '.join(unsupported)}; expected text-classification with problem_type "
        "single_label, token-classification without crf (a base's stays unless --no-crf is given), or "
        "next-sentence-prediction"
    )


def class_weights(task: Task, targets: Sequence[NDArray[np.int64]], settings: TrainSettings) -> Tensor | None:
    """Return the class weights that `settings` ask for, float32 [L], from the targets of a training file."""
    if settings.class_weights is None:
        return None
    return balanced_weights(targets, build_objective(task).num_classes)


def balanced_weights(targets: Sequence[NDArray[np.int64]], num_classes: int) -> Tensor:
    """Return weights that are inverse to the class frequencies, with a mean of 1, float32 [num_classes].

    A class that never occurs has weight 1 and does not count in the mean.

    Args:
        targets: class ids of any shape; negative ones are ignored.
        num_classes: number of classes.
    """
    flat = np.concatenate([target.reshape(-1) for target in targets])
    counts = np.bincount(flat[flat >= 0], minlength=num_classes)
    occurs = counts > 0
    weights = np.ones(num_classes)
    weights[occurs] = 1 / counts[occurs]
    weights[occurs] /= weights[occurs].mean()
    return torch.tensor(weights, dtype=torch.float32)
