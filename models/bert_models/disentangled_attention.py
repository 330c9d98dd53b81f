"""Disentangled attention: scores of contents with relative positions, in both directions (DeBERTa, arXiv:2006.03654).

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, A heads, D head size, P positions on
either side of distance 0 that have embeddings of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_models.config import EncoderConfig
from bert_models.relative_positions import MASKED_SCORE

__all__ = [
    "PositionScores",
    "PositionTable",
    "RelativePositions",
    "fold_position_projections",
    "logarithmic_buckets",
    "position_indices",
]


class PositionTable(NamedTuple):
    """Embeddings of relative positions, and which of them belongs to each distance."""

    embeddings: Tensor
    """float [2P, H]"""
    key_indices: Tensor
    """Embedding of distances S - 1, …, 0, …, -S from key to query, int64 [2S]."""
    query_indices: Tensor
    """Embedding of distances 1 - S, …, 0, …, S from key to query, int64 [2S]."""


class RelativePositions(nn.Module):
    """Embeddings of relative positions, which all layers share and each projects to keys and queries."""

    key_indices: Tensor
    query_indices: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.max_tokens = config.max_tokens
        self.table = nn.Embedding(2 * config.position_span, config.hidden_size)
        norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.norm = norm if config.norm_relative_positions else None
        distances = torch.arange(-self.max_tokens, self.max_tokens + 1)
        indices = position_indices(distances, config)
        self.register_buffer("key_indices", indices[:-1].flip(0), persistent=False)
        self.register_buffer("query_indices", indices[1:].clone(), persistent=False)

    def forward(self, tokens: int) -> PositionTable:
        """Return the table for sequences of `tokens` tokens."""
        embeddings = self.table.weight if self.norm is None else self.norm(self.table.weight)
        part = slice(self.max_tokens - tokens, self.max_tokens + tokens)
        return PositionTable(embeddings, self.key_indices[part], self.query_indices[part])


def position_indices(distances: Tensor, config: EncoderConfig) -> Tensor:
    """Return the index of each distance's embedding.

    Args:
        distances: position of the query minus that of the key, int64 of any shape.
        config: says how many positions have embeddings, and whether distances share buckets.

    Returns:
        int64 of the same shape, from 0 to 2P - 1.
    """
    span = config.position_span
    if config.position_buckets is not None:
        distances = logarithmic_buckets(distances, config.position_buckets, config.relative_limit)
    return (distances + span).clamp(0, 2 * span - 1)


def logarithmic_buckets(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Return the signed bucket of each distance: single distances up to half of the buckets, then logarithmic ones.

    Args:
        distances: int64 of any shape.
        num_buckets: buckets on either side of 0.
        max_distance: the last bucket ends at `max_distance` - 1.

    Returns:
        int64 of the same shape; beyond `max_distance`, buckets may exceed `num_buckets`.
    """
    middle = num_buckets // 2
    sizes = distances.abs()
    share = torch.log(sizes.clamp(min=middle) / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
    buckets = torch.ceil(share * (middle - 1)).long() + middle
    return torch.where(sizes <= middle, distances, buckets * distances.sign())


class PositionScores(nn.Module):
    """Scores of relative positions, which are added to attention's scores: c2p, p2c or both.

    c2p: query · projected position, as if it were a key. p2c: key · projected position, as if it were a query.
    """

    position_keys: Tensor | None
    position_queries: Tensor | None

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.position_attention is not None
        self.parts = config.position_attention.split("|")
        self.num_heads, self.scale = config.num_heads, config.attention_scale
        width, shared = config.hidden_size, config.share_position_projections
        self.key = nn.Linear(width, width) if "c2p" in self.parts and not shared else None
        self.query = nn.Linear(width, width) if "p2c" in self.parts and not shared else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.position_keys = self.position_queries = None

    def project(self, embeddings: Tensor, query: nn.Linear, key: nn.Linear) -> tuple[Tensor | None, Tensor | None]:
        """Project the embeddings of positions, and scale them like attention's scores.

        Args:
            embeddings: float [2P, H].
            query: projection of contents to queries, which positions may share.
            key: projection of contents to keys.

        Returns:
            Positions as keys and as queries, float [A, 2P, D] each; `None` for a part that there is not.
        """
        embeddings = self.dropout(embeddings)

        def by_head(projection: nn.Linear) -> Tensor:
            # No call: hooks of a shared projection are for contents.
            projected = F.linear(embeddings, projection.weight, projection.bias) * self.scale
            return projected.view(len(embeddings), self.num_heads, -1).transpose(0, 1)

        keys = by_head(self.key or key) if "c2p" in self.parts else None
        queries = by_head(self.query or query) if "p2c" in self.parts else None
        return keys, queries

    def forward(
        self, query: Tensor, key: Tensor, mask: Tensor, table: PositionTable, projections: tuple[nn.Linear, nn.Linear]
    ) -> Tensor:
        """Combine a mask with the scores of positions.

        Args:
            query: float [B, A, S, D].
            key: float [B, A, S, D].
            mask: bool [B, 1, S, S], True where a query may attend to a key.
            table: embeddings of relative positions.
            projections: those of contents to queries and keys.

        Returns:
            What is added to the scaled scores of contents, float [B, A, S, S].
        """
        keys, queries = self.position_keys, self.position_queries
        if keys is None and queries is None:
            keys, queries = self.project(table.embeddings, *projections)
        scores = []
        if keys is not None:
            scores.append(_shift(query @ keys.index_select(1, table.key_indices).transpose(1, 2)))
        if queries is not None:
            by_key = key @ queries.index_select(1, table.query_indices).transpose(1, 2)
            scores.append(_shift(by_key).transpose(2, 3))
        return torch.where(mask, sum(scores[1:], scores[0]), MASKED_SCORE)


def _shift(scores: Tensor) -> Tensor:
    """Shift row i of each matrix by S - 1 - i to the left: [B, A, S, 2S] → [B, A, S, S].

    Columns are distances before, and positions of the other side after (Transformer-XL, arXiv:1901.02860, appendix B).
    """
    batch, heads, tokens, width = scores.shape
    rows = scores.flatten(2)[:, :, tokens - 1 : tokens - 1 + tokens * (width - 1)]
    return rows.view(batch, heads, tokens, width - 1)[..., :tokens]


@contextmanager
def fold_position_projections(model: nn.Module) -> Iterator[None]:
    """Let every `PositionScores` of `model` read its projected positions from a buffer, for as long as the context.

    They depend on the weights alone. A part that there is not becomes zeros.
    """
    folded: list[PositionScores] = []
    try:
        for module in model.modules():
            if isinstance(relative := getattr(module, "relative_positions", None), RelativePositions):
                folded += _fold_all(module, relative(relative.max_tokens).embeddings)
        yield
    finally:
        for positions in folded:
            for name in ("position_keys", "position_queries"):
                delattr(positions, name)
                setattr(positions, name, None)


@torch.no_grad()
def _fold_all(encoder: nn.Module, embeddings: Tensor) -> list[PositionScores]:
    """Set the buffers of every layer of `encoder`, and return their modules."""
    folded = []
    for attention in encoder.modules():
        if isinstance(positions := getattr(attention, "positions", None), PositionScores):
            projections: Any = attention
            keys, queries = positions.project(embeddings, projections.query, projections.key)
            _fold(positions, keys, queries)
            folded.append(positions)
    return folded


def _fold(positions: PositionScores, keys: Tensor | None, queries: Tensor | None) -> None:
    shape = keys if keys is not None else queries
    assert shape is not None
    for name, value in (("position_keys", keys), ("position_queries", queries)):
        delattr(positions, name)
        folded = torch.zeros_like(shape) if value is None else value
        positions.register_buffer(name, folded.contiguous(), persistent=False)
