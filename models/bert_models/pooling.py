"""Ways to turn token vectors into one vector: what `bert_runtime.tasks.sentence_embedding.POOLINGS` names.

Each takes `hidden` float [B, S, H] and `attention_mask` int64 [B, S] (1 at real tokens).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bert_models.config import EncoderConfig

__all__ = ["AttentionPooling", "build_pooling", "cls_pooling"]


def cls_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The first token's vector, [CLS] in BERT's terms: [B, S, H] → [B, H]."""
    return hidden[:, 0]


def mean_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over real tokens: [B, S, H] → [B, H]; zero for a row without any."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def max_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The largest value of each dimension over real tokens: [B, S, H] → [B, H]."""
    return hidden.masked_fill(attention_mask.unsqueeze(-1) == 0, -1e9).amax(dim=1)


def mean_sqrt_len_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The sum over real tokens, divided by the square root of their number: [B, S, H] → [B, H]."""
    weights = attention_mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9).sqrt()


def weighted_mean_pooling(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over real tokens, each weighted by its position from 1 (SGPT, arXiv:2202.08904): [B, S, H] → [B, H]."""
    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    weights = (attention_mask.to(hidden.dtype) * places).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


class AttentionPooling(nn.Module):
    """The mean over real tokens, each weighted by a learned score of its vector (Yang et al., NAACL 2016, without the
    hidden layer): [B, S, H] → [B, H]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """→ vectors [B, H]."""
        scores = self.score(hidden).squeeze(-1).masked_fill(attention_mask == 0, -1e9)
        return (hidden * scores.softmax(dim=1).unsqueeze(-1)).sum(dim=1)


class _Pooling(nn.Module):
    """A pooling without parameters."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """→ vectors [B, H]."""
        return self.function(hidden, attention_mask)


_FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pooling,
    "cls": cls_pooling,
    "max": max_pooling,
    "mean_sqrt_len": mean_sqrt_len_pooling,
    "weighted_mean": weighted_mean_pooling,
}


def build_pooling(name: str, config: EncoderConfig) -> nn.Module:
    """The pooling of that name."""
    return AttentionPooling(config) if name == "attention" else _Pooling(_FUNCTIONS[name])
