"""Ranking with in-batch negatives: the texts of a batch that answer other queries are the wrong answers of a query."""

import zlib

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ranking_cross_entropy", "text_hash"]


def text_hash(text: str) -> int:
    """Return a number of 32 bits by which equal texts of a batch are found."""
    return zlib.crc32(text.encode())


def ranking_cross_entropy(scores: Tensor, hashes: Tensor) -> Tensor:
    """Return the mean cross-entropy of finding each query's own answer among all texts of the batch, float32 [].

    A text that equals a query's answer, such as that of another query, is no negative of it.

    Args:
        scores: score of each query with each text, float [Q, D]; the answers come first, in the order of the queries.
        hashes: `text_hash` of the texts, [D].
    """
    is_answer = hashes[: len(scores), None] == hashes
    is_answer.fill_diagonal_(False)  # the query's own
    targets = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores.masked_fill(is_answer, float("-inf")), targets)
