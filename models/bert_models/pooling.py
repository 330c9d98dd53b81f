"""Poolings: reduce a sequence of token vectors to one vector.

`bert_runtime.tasks.sentence_embedding.POOLINGS` lists their names. Every pooling takes `hidden`, float [B, S, H], and
`attention_mask`, int64 [B, S] (1 at real tokens, 0 at padding), and returns float [B, H].

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bert_models.config import EncoderConfig

__all__ = ["AttentionPooling", "build_pooling", "cls_pooling"]


def cls_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the vector of the first token, `[CLS]` in BERT: [B, S, H] → [B, H]."""
    return hidden[:, 0]


def mean_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Average the real tokens: [B, S, H] → [B, H]; a sequence without real tokens gives 0."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def max_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Take the maximum of every dimension over the real tokens: [B, S, H] → [B, H]."""
    return hidden.masked_fill(attention_mask.unsqueeze(-1) == 0, -1e9).amax(dim=1)


def mean_sqrt_len_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Sum the real tokens and divide by the square root of their number: [B, S, H] → [B, H]."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9).sqrt()


def weighted_mean_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Average the real tokens, weighted by position 1, 2, …, S: [B, S, H] → [B, H].

    This is the position-weighted mean pooling of SGPT (Muennighoff, arXiv:2202.08904).
    """
    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    weights = (attention_mask.to(hidden.dtype) * positions).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


class AttentionPooling(nn.Module):
    """Average the real tokens, weighted by a softmax over learned scores: Σ softmax(w·h + b) h.

    After the word attention of Yang et al. (NAACL 2016), without its hidden layer.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Pool `hidden`, float [B, S, H], with `attention_mask`, int64 [B, S], to float [B, H]."""
        scores = self.score(hidden).squeeze(-1).float().masked_fill(attention_mask == 0, -1e9)
        return (hidden * scores.softmax(dim=1).unsqueeze(-1)).sum(dim=1)


class _FunctionPooling(nn.Module):
    """A pooling without parameters, as a module."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Pool `hidden`, float [B, S, H], with `attention_mask`, int64 [B, S], to float [B, H]."""
        return self.function(hidden, attention_mask)


_FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pooling,
    "cls": cls_pooling,
    "max": max_pooling,
    "mean_sqrt_len": mean_sqrt_len_pooling,
    "weighted_mean": weighted_mean_pooling,
}


def build_pooling(name: str, config: EncoderConfig) -> nn.Module:
    """Return the pooling module called `name`, one of `bert_runtime.tasks.sentence_embedding.POOLINGS`."""
    return AttentionPooling(config) if name == "attention" else _FunctionPooling(_FUNCTIONS[name])
