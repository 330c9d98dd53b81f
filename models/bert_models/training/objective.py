"""The interface of training objectives: targets as arrays, and the loss.

Letters in shapes: B sequences in the batch, L labels.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_models.model import TaskModel
from bert_runtime.tasks import Example, Task, Vocabulary

__all__ = ["Objective", "Target"]

Target = NDArray[Any]


class Objective(ABC):
    """Targets and loss of one task.

    A target belongs to an item: one window of a text, or all texts of an example that are compared.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.label_smoothing = 0.0
        self.class_weights: Tensor | None = None
        """Float32 [L]; weights and smoothing are used by objectives that have `num_classes`."""

    compares_texts: ClassVar[bool] = False
    """Whether a row may have several texts of different lengths, such as queries and documents, with an output each."""

    @property
    def num_classes(self) -> int:
        """Number of classes if the loss is a cross-entropy over classes of which one is right, else 0."""
        return 0

    @abstractmethod
    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        """Return the target of one window.

        Args:
            example: the labelled example.
            encoding: a window of the example's first text.
            vocabulary: the tokenizer, for tasks whose labels are tokens.
        """

    @abstractmethod
    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch, float32 [].

        Args:
            model: the model, for heads that have a loss of their own (CRF).
            outputs: what the model returns for the batch, [B, …].
            targets: stacked targets, see `stack_targets`.
        """

    def weight(self, targets: Tensor) -> Tensor:
        """Return the denominator of the mean in `loss`, float32 []; processes weight their parts by it."""
        return torch.tensor(float(len(targets)), device=targets.device)

    def cross_entropy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the smoothed and weighted cross-entropy of outputs [N, L] and class ids int64 [N], float32 [].

        Targets that are `IGNORE_INDEX` are left out; without any other, the loss is 0.
        """
        if not (targets != IGNORE_INDEX).any():  # such as of a window within a word
            return outputs.float().sum() * 0
        weights = None if self.class_weights is None else self.class_weights.to(outputs.device)
        return F.cross_entropy(
            outputs.float(), targets, weights, ignore_index=IGNORE_INDEX, label_smoothing=self.label_smoothing
        )

    def labelled_weight(self, targets: Tensor) -> Tensor:
        """Return the number of targets that are not `IGNORE_INDEX`, or the sum of their class weights, float32 []."""
        labelled = targets[targets != IGNORE_INDEX]
        if self.class_weights is None:
            return torch.tensor(float(len(labelled)), device=targets.device)
        return self.class_weights.to(targets.device)[labelled].sum()
