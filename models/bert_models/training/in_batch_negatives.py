"""Ranking with in-batch negatives: the texts of a batch that answer other queries are the wrong answers of a query."""

import zlib

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["dot_products", "ranking_cross_entropy", "text_hash"]


def text_hash(text: str) -> int:
    """Return a number of 32 bits by which equal texts of a batch are found."""
    return zlib.crc32(text.encode())


def dot_products(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of all pairs of vectors [N, H] and [M, H], float32 [N, M], also where autocast is on.

    In bfloat16, cosines near 1 have steps of 0.004, and a softmax over 20 times as much cannot tell close texts apart.
    """
    with torch.autocast(x.device.type, enabled=False):
        return x.float() @ y.float().T


def ranking_cross_entropy(scores: Tensor, queries: Tensor, texts: Tensor) -> Tensor:
    """Return the mean cross-entropy of finding each query's own answer among all texts of the batch, float32 [].

    A text that answers an equal query, in any row, is no negative of it.

    Args:
        scores: score of each query with each text, float [Q, D]; the answers come first, in the order of the queries.
        queries: `text_hash` of the queries, [Q].
        texts: that of the texts, [D].
    """
    is_same_query, is_same_text = queries[:, None] == queries, texts[: len(scores), None] == texts
    is_answer = is_same_query.float() @ is_same_text.float() > 0
    is_answer.fill_diagonal_(False)  # the query's own
    targets = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores.masked_fill(is_answer, float("-inf")), targets)
