"""Task heads: from the encoder's hidden vectors to what a task's post-processing reads.

Each takes `hidden` float [B, S, H] and `attention_mask` int64 [B, S] (1 at real tokens).
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.config import EncoderConfig
from bert_models.layers import activation_function
from bert_runtime.tasks import (
    NextSentencePrediction,
    SentenceEmbedding,
    Task,
    TextClassification,
)

__all__ = ["HEADS", "ClassificationHead", "EmbeddingHead", "build_head"]


def first_token(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The first token's vector, [CLS] in BERT's terms: [B, S, H] → [B, H]."""
    return hidden[:, 0]


def mean_of_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over real tokens: [B, S, H] → [B, H]; zero for a row without any."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def max_of_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The largest value of each dimension over real tokens: [B, S, H] → [B, H]."""
    return hidden.masked_fill(attention_mask.unsqueeze(-1) == 0, -1e9).amax(dim=1)


def scaled_sum_of_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The sum over real tokens, divided by the square root of their number: [B, S, H] → [B, H]."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9).sqrt()


def weighted_mean_of_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over real tokens, each weighted by its position from 1 (SGPT, arXiv:2202.08904): [B, S, H] → [B, H]."""
    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    weights = (attention_mask.to(hidden.dtype) * places).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


_POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_of_tokens,
    "cls": first_token,
    "max": max_of_tokens,
    "mean_sqrt_len": scaled_sum_of_tokens,
    "weighted_mean": weighted_mean_of_tokens,
}


class ClassificationHead(nn.Module):
    """First token → dense → activation → dropout → labels.

    Every family classifies with this shape and an activation of its own. In BERT and ALBERT the dense layer with tanh
    is the pooler (Devlin et al., arXiv:1810.04805), pre-trained with the sentence-pair objective.
    """

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__()
        dropout = config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation_function(config.classifier_activation)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(config.hidden_size, num_labels)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """→ logits [B, labels]."""
        pooled = self.activation(self.dense(first_token(hidden, attention_mask)))
        return self.output(self.dropout(pooled))


class EmbeddingHead(nn.Module):
    """Pooling over tokens, dense layers if the task has any, then optionally L2 normalisation."""

    def __init__(self, config: EncoderConfig, task: SentenceEmbedding) -> None:
        super().__init__()
        sizes = (config.hidden_size, *task.dense_sizes)
        self.pool = _POOLINGS[task.pooling]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.activations = [activation_function(name) for name in task.dense_activations]
        self.dimensions = task.dimensions if task.dimensions < sizes[-1] else None
        self.normalize = task.normalize

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """→ vectors [B, dimensions]."""
        vector = self.pool(hidden, attention_mask)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            vector = activation(layer(vector))
        if self.dimensions is not None:
            vector = vector[:, : self.dimensions]
        return F.normalize(vector, dim=-1) if self.normalize else vector


def _classification(config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, TextClassification)
    return ClassificationHead(config, len(task.labels))


def _embedding(config: EncoderConfig, task: Task) -> nn.Module:
    assert isinstance(task, SentenceEmbedding)
    return EmbeddingHead(config, task)


HEADS: Mapping[str, Callable[[EncoderConfig, Task], nn.Module]] = {
    TextClassification.name: _classification,
    NextSentencePrediction.name: lambda config, task: ClassificationHead(config, 2),
    SentenceEmbedding.name: _embedding,
}
"""How to build each task's head; the keys are those of `bert_runtime.tasks.TASKS`."""


def build_head(config: EncoderConfig, task: Task) -> nn.Module:
    """A newly initialised head for `task`."""
    return HEADS[task.name](config, task)
