"""What each task's head is trained on: targets as arrays, and the loss.

Letters in shapes: B sequences in the batch, S tokens per sequence, L labels, V tokens of the vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_models.model import TaskModel
from bert_models.training.similarity import similarity_loss
from bert_runtime.tasks import (
    Example,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
    Vocabulary,
)
from bert_runtime.tasks.tokens import answer_token_span, find_first_tokens, text_token_indices

__all__ = ["OBJECTIVES", "Objective", "build_objective", "stack_targets"]

Target = NDArray[Any]


class Objective(ABC):
    """How one task is learnt. A target belongs to an item: one window, or all texts of an example that are compared."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.label_smoothing = 0.0
        self.class_weights: Tensor | None = None
        """Float32 [L]; this and the smoothing are used by objectives that have `classes`."""

    @property
    def classes(self) -> int:
        """Classes of which one is right, where cross-entropy over these is all of the loss; 0 elsewhere."""
        return 0

    @abstractmethod
    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        """What the outputs for `encoding`, a window of the example's first text, are compared with."""

    @abstractmethod
    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, float32 []."""

    def weight(self, targets: Tensor) -> Tensor:
        """What `loss` divides the batch's sum by, float32 []: batches that are parts of one count by it."""
        return torch.tensor(float(len(targets)), device=targets.device)

    def cross_entropy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of outputs [N, L] and class ids int64 [N], leaving out `IGNORE_INDEX`, smoothed and weighted."""
        weights = None if self.class_weights is None else self.class_weights.to(outputs.device)
        return F.cross_entropy(
            outputs.float(), targets, weights, ignore_index=IGNORE_INDEX, label_smoothing=self.label_smoothing
        )

    def labelled(self, targets: Tensor) -> Tensor:
        """`weight` where targets may be `IGNORE_INDEX`: how many are not, or the sum of their classes' weights."""
        labelled = targets[targets != IGNORE_INDEX]
        if self.class_weights is None:
            return torch.tensor(float(len(labelled)), device=targets.device)
        return self.class_weights.to(targets.device)[labelled].sum()


class _SingleLabel(Objective):
    """Cross-entropy; targets are class ids int64 []."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return np.array(example.target, dtype=np.int64)

    @property
    def classes(self) -> int:
        assert isinstance(self.task, TextClassification | NextSentencePrediction)
        return len(self.task.labels)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.cross_entropy(outputs, targets)

    def weight(self, targets: Tensor) -> Tensor:
        return self.labelled(targets)


class _MultiLabel(Objective):
    """Binary cross-entropy of each label; targets are float32 [L], 1 for every label that holds."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        assert isinstance(self.task, TextClassification)
        encoded = np.zeros(len(self.task.labels), dtype=np.float32)
        encoded[example.target] = 1
        return encoded

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.float(), targets)


class _Regression(Objective):
    """Squared error; targets are float32 [L]."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return np.array(example.target, dtype=np.float32)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.float(), targets)


def _classification(task: Task) -> Objective:
    assert isinstance(task, TextClassification)
    kinds: dict[str, Callable[[Task], Objective]] = {
        "single_label": _SingleLabel,
        "multi_label": _MultiLabel,
        "regression": _Regression,
    }
    return kinds[task.problem_type](task)


class _TokenLabels(Objective):
    """Cross-entropy over the first token of every word, or the likelihood of the chain over these.

    Targets are int64 [S], `IGNORE_INDEX` elsewhere.
    """

    @property
    def classes(self) -> int:
        assert isinstance(self.task, TokenClassification)
        return 0 if self.task.crf else len(self.task.labels)

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        words, labels = example.target
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.int64)
        places, offsets = _text_tokens(encoding)
        firsts = find_first_tokens(offsets, words)
        # A later window may begin inside a word, whose first token it then does not have.
        whole = (firsts >= 0) & (offsets[firsts, 0] <= words[:, 0])
        target[places[firsts[whole]]] = labels[whole]
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        crf = getattr(model.head, "crf", None)
        if crf is not None:
            chain: Tensor = crf(outputs, targets)
            return chain
        return self.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def weight(self, targets: Tensor) -> Tensor:
        return self.labelled(targets)


class _Span(Objective):
    """Cross-entropy of the first and of the last token of the answer, which both are token 0 where a window lacks it.

    Targets are int64 [2].
    """

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        if not example.target:
            return np.zeros(2, dtype=np.int64)
        text, start = example.target[0]
        return np.array(answer_token_span(encoding, start, start + len(text)), dtype=np.int64)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), targets)  # [B, S, 2]: S classes, twice


class _MaskedTokens(Objective):
    """Cross-entropy at the masks; targets are int64 [S], the right tokens' ids there and `IGNORE_INDEX` elsewhere."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        assert isinstance(self.task, FillMask)
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.int64)
        masks = np.flatnonzero(np.array(encoding.ids) == self.task.mask_token_id)
        expected = [self.task.single_token_id(word, vocabulary) for word in example.target]
        target[masks] = expected[: len(masks)]
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        chosen = targets != IGNORE_INDEX
        return F.cross_entropy(outputs[chosen].float(), targets[chosen])

    def weight(self, targets: Tensor) -> Tensor:
        return self.labelled(targets)


class _Replaced(Objective):
    """Binary cross-entropy of every token of every word; targets are float32 [S], `IGNORE_INDEX` elsewhere."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        words, labels = example.target
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.float32)
        places, offsets = _text_tokens(encoding)
        word = np.searchsorted(words[:, 1], offsets[:, 1], side="left").clip(max=len(words) - 1)
        target[places] = labels[word]
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        chosen = targets != IGNORE_INDEX
        return F.binary_cross_entropy_with_logits(outputs[chosen].float(), targets[chosen])

    def weight(self, targets: Tensor) -> Tensor:
        return self.labelled(targets)


class _Similarity(Objective):
    """See `similarity_loss`; targets are float32 []."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return np.array(example.target, dtype=np.float32)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return similarity_loss(outputs, targets)


OBJECTIVES: Mapping[str, Callable[[Task], Objective]] = {
    TextClassification.name: _classification,
    TokenClassification.name: _TokenLabels,
    QuestionAnswering.name: _Span,
    FillMask.name: _MaskedTokens,
    NextSentencePrediction.name: _SingleLabel,
    ReplacedTokenDetection.name: _Replaced,
    SentenceEmbedding.name: _Similarity,
}
"""How each task is learnt; the keys are those of `bert_runtime.tasks.TASKS`."""


def build_objective(task: Task, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> Objective:
    """The objective of `task`, with what `check_loss_settings` allows for it."""
    objective = OBJECTIVES[task.name](task)
    objective.label_smoothing, objective.class_weights = label_smoothing, class_weights
    return objective


def stack_targets(targets: Sequence[Target]) -> Tensor:
    """Targets as one tensor [B, …]; those of fewer tokens are filled up with `IGNORE_INDEX`."""
    longest = max((len(each) for each in targets if each.ndim), default=0)
    padded = [
        np.pad(each, (0, longest - len(each)), constant_values=IGNORE_INDEX) if each.ndim else each for each in targets
    ]
    return torch.from_numpy(np.stack(padded))


def _text_tokens(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places and characters of the tokens of a window's text."""
    places = text_token_indices(encoding)
    return places, np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[places]
