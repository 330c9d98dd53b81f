"""Token pruning in PyTorch: choose the tokens that stay, and take their vectors, see `TokenPruning`.

Letters in shapes: B sequences in the batch, S tokens per sequence, K tokens that stay, H hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bert_models.pruning_schedule import MIN_KEPT_TOKENS

__all__ = ["KeptTokens", "keep_tokens", "take_tokens", "without_pruning"]


class KeptTokens(NamedTuple):
    """The tokens that stay, in their order; shorter sequences are padded on the right."""

    indices: Tensor
    """int64 [B, K]"""
    mask: Tensor
    """Whether the token is real, bool [B, K]."""


@torch.no_grad()
def keep_tokens(attention: Any, hidden: Tensor, mask: Tensor, whole_mask: Tensor, percent: int) -> KeptTokens:
    """Choose the tokens that stay after a layer's attention. Gradients flow through their vectors alone.

    Args:
        attention: the layer's `SelfAttention`.
        hidden: its input, float [B, S, H].
        mask: not 0 at real tokens, [B, S].
        whole_mask: the same before any pruning.
        percent: the percentage of the tokens of `whole_mask` that stays.
    """
    tokens, mask, lengths = hidden.shape[1], mask.bool(), whole_mask.bool().sum(dim=1)
    importance = first_token_attention(attention, hidden, mask).masked_fill(~mask, -1.0)
    importance[:, 0].masked_fill_(mask[:, 0], torch.inf)  # padding on the left takes no place of a real token
    kept = torch.maximum((lengths * percent + 99) // 100, lengths.clamp(max=MIN_KEPT_TOKENS)).clamp(min=1)
    count = min(int(kept.max()), tokens)
    ranked = importance.argsort(dim=1, descending=True, stable=True)[:, :count]
    ranks = torch.arange(count, device=hidden.device)
    indices = ranked.masked_fill(ranks >= kept[:, None], tokens).sort(dim=1).values
    is_kept, indices = indices < tokens, indices.clamp(max=tokens - 1)
    return KeptTokens(indices, mask.gather(1, indices) & is_kept)


def first_token_attention(attention: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the attention probabilities of the first token's query, averaged over the heads: float32 [B, S].

    Args:
        attention: a `SelfAttention`.
        hidden: its input, float [B, S, H].
        mask: True at real tokens, bool [B, S].
    """
    heads = (attention.num_heads, attention.head_size)
    query = attention.query(hidden[:, :1]).unflatten(2, heads)
    key = attention.key(hidden).unflatten(2, heads)
    scores = (query * key).sum(dim=-1, dtype=torch.float32) * attention.head_size**-0.5
    return scores.masked_fill(~mask[:, :, None], -torch.inf).softmax(dim=1).mean(dim=2)


def take_tokens(hidden: Tensor, indices: Tensor) -> Tensor:
    """Return the vectors of some tokens: float [B, S, H], int64 [B, K] → [B, K, H]."""
    return hidden.gather(1, indices[:, :, None].expand(-1, -1, hidden.shape[2]))


@contextmanager
def without_pruning(model: nn.Module) -> Iterator[None]:
    """Let the encoder of a `TaskModel` keep all tokens, for as long as the context."""
    encoder: Any = model.encoder
    pruning, encoder.token_pruning = encoder.token_pruning, None
    try:
        yield
    finally:
        encoder.token_pruning = pruning
