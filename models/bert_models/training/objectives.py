"""The training objective of each task: targets as arrays, and the loss.

Letters in shapes: B sequences in the batch, S tokens per sequence, L labels, V tokens of the vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional as F

from bert_models.crf import IGNORE_INDEX
from bert_models.model import TaskModel
from bert_models.training.in_batch_negatives import ranking_target
from bert_models.training.objective import Objective, Target
from bert_models.training.relevance import RelevanceObjective
from bert_models.training.similarity import similarity_loss, similarity_target
from bert_models.training.sparse_ranking import Regularizer, ranking_loss
from bert_runtime.tasks import (
    Example,
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
    Vocabulary,
)
from bert_runtime.tasks.tokens import answer_token_span, find_first_tokens, text_token_indices

__all__ = ["OBJECTIVES", "Objective", "SparseRanking", "build_objective", "stack_targets", "word_target"]


class _SingleLabel(Objective):
    """Cross-entropy over classes; targets are class ids int64 []."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return np.array(example.target, dtype=np.int64)

    @property
    def num_classes(self) -> int:
        assert isinstance(self.task, TextClassification | NextSentencePrediction)
        return len(self.task.labels)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.cross_entropy(outputs, targets)

    weight = Objective.labelled_weight


class _MultiLabel(Objective):
    """Binary cross-entropy of each label; targets are float32 [L], 1 for every label that applies."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        assert isinstance(self.task, TextClassification)
        encoded = np.zeros(len(self.task.labels), dtype=np.float32)
        encoded[example.target] = 1
        return encoded

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.float(), targets)


class _Regression(Objective):
    """Mean squared error; targets are float32 [L]."""

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


def word_target(encoding: Encoding, words: NDArray[np.int64], labels: NDArray[np.int64]) -> Target:
    """Return the target of a tokenized text: the label of each word at its first token, int64 [S].

    Args:
        encoding: the tokenized text, or a window of it.
        words: start and end character of each word, int64 [W, 2].
        labels: their labels, int64 [W].

    Returns:
        The labels, and `IGNORE_INDEX` at all other tokens.
    """
    target = np.full(len(encoding), IGNORE_INDEX, dtype=np.int64)
    token_indices, offsets = _text_tokens(encoding)
    if not len(token_indices):
        return target
    firsts = find_first_tokens(offsets, words)
    # A later window may begin inside a word, and then lacks the word's first token. Any other token that is found is
    # the first, also where it begins behind characters that the tokenizer drops.
    begins_text = encoding.word_ids[token_indices[0]] == 0
    has_start = (firsts > 0) | ((firsts == 0) & (begins_text | (offsets[0, 0] <= words[:, 0])))
    target[token_indices[firsts[has_start]]] = labels[has_start]
    return target


class _TokenLabels(Objective):
    """Cross-entropy at the first token of every word, or the CRF's negative log-likelihood over these.

    Targets are int64 [S], `IGNORE_INDEX` at all other tokens.
    """

    @property
    def num_classes(self) -> int:
        assert isinstance(self.task, TokenClassification)
        return 0 if self.task.crf else len(self.task.labels)

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return word_target(encoding, *example.target)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        crf = getattr(model.head, "crf", None)
        if crf is not None:
            negative_log_likelihood: Tensor = crf(outputs, targets)
            return negative_log_likelihood
        return self.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    weight = Objective.labelled_weight


class _Span(Objective):
    """Cross-entropy of the answer's first and last token (BERT, arXiv:1810.04805, sections 4.2 and 4.3).

    Targets are int64 [2]: token indices, both 0 (`[CLS]`) in a window without the answer.
    """

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        if not example.target:
            return np.zeros(2, dtype=np.int64)
        text, start = example.target[0]
        return np.array(answer_token_span(encoding, start, start + len(text)), dtype=np.int64)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), targets)  # [B, S, 2]: S classes, twice


class _MaskedTokens(Objective):
    """Cross-entropy at the mask tokens; targets are int64 [S], token ids there and `IGNORE_INDEX` elsewhere."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        assert isinstance(self.task, FillMask)
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.int64)
        masks = np.flatnonzero(np.array(encoding.ids) == self.task.mask_token_id)
        expected = [self.task.single_token_id(word, vocabulary) for word in example.target]
        target[masks] = expected[: len(masks)]
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        is_labelled = targets != IGNORE_INDEX
        return F.cross_entropy(outputs[is_labelled].float(), targets[is_labelled])

    weight = Objective.labelled_weight


class _ReplacedTokens(Objective):
    """Binary cross-entropy at every token of every word (ELECTRA, arXiv:2003.10555).

    Targets are float32 [S], 1 at replaced tokens and `IGNORE_INDEX` at special ones.
    """

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        words, labels = example.target
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.float32)
        token_indices, offsets = _text_tokens(encoding)
        word_indices = np.searchsorted(words[:, 1], offsets[:, 1], side="left").clip(max=len(words) - 1)
        target[token_indices] = labels[word_indices]
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        is_labelled = targets != IGNORE_INDEX
        return F.binary_cross_entropy_with_logits(outputs[is_labelled].float(), targets[is_labelled])

    weight = Objective.labelled_weight


class _Similarity(Objective):
    """Similarity of pairs, or ranking by it, see `similarity_loss`; targets are float32 [] or int64 [1 + N]."""

    compares_texts: ClassVar[bool] = True

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return similarity_target(example)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        task = self.task
        assert isinstance(task, SentenceEmbedding)
        return similarity_loss(outputs, targets, dot=task.similarity == "dot" and not task.normalize)


class SparseRanking(Objective):
    """Ranking by dot product of sparse embeddings, see `ranking_loss`; targets are int64 [1 + N]."""

    compares_texts: ClassVar[bool] = True
    regularizer = Regularizer(query=0, document=0)

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return ranking_target(example)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        return ranking_loss(outputs, targets, self.regularizer)


OBJECTIVES: Mapping[str, Callable[[Task], Objective]] = {
    TextClassification.name: _classification,
    TokenClassification.name: _TokenLabels,
    QuestionAnswering.name: _Span,
    FillMask.name: _MaskedTokens,
    NextSentencePrediction.name: _SingleLabel,
    ReplacedTokenDetection.name: _ReplacedTokens,
    SentenceEmbedding.name: _Similarity,
    SparseEmbedding.name: SparseRanking,
    Reranking.name: RelevanceObjective,
}
"""Objective by task name; the keys are those of `bert_runtime.tasks.TASKS` whose data has labels."""


def build_objective(task: Task, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> Objective:
    """Return the objective of a task.

    Args:
        task: the task.
        label_smoothing: fraction of each target spread over all classes.
        class_weights: weights of the classes, float32 [L]. `check_loss_settings` says which tasks support smoothing
            and weights.
    """
    objective = OBJECTIVES[task.name](task)
    objective.label_smoothing, objective.class_weights = label_smoothing, class_weights
    return objective


def stack_targets(targets: Sequence[Target]) -> Tensor:
    """Stack targets into one tensor [B, …]; shorter ones are padded with `IGNORE_INDEX`."""
    longest = max((len(target) for target in targets if target.ndim), default=0)
    padded = [
        np.pad(target, (0, longest - len(target)), constant_values=IGNORE_INDEX) if target.ndim else target
        for target in targets
    ]
    return torch.from_numpy(np.stack(padded))


def _text_tokens(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices [T] and character offsets [T, 2] of the tokens of a window's text, int64."""
    token_indices = text_token_indices(encoding)
    return token_indices, np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[token_indices]
