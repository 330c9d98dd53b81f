"""Ranking with in-batch negatives: the texts of a batch that answer other queries are the wrong answers of a query."""

import zlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bert_runtime.records import Record
from bert_runtime.tasks import Example, Task

__all__ = ["RankingBatch", "dot_products", "ranking_example", "ranking_target"]


def ranking_example(task: Task, record: Record) -> Example:
    """Return a row's query, the text that answers it, and the texts that do not, which the row has as `negative`.

    Raises:
        DataError: the row has no pair of texts, or a negative is no text.
    """
    return task.example(record)._replace(inputs=task.inputs(record))


def ranking_target(example: Example) -> NDArray[np.int64]:
    """Return the number N of the example's texts, and a hash of each, by which equal texts are found: int64 [1 + N]."""
    return np.array([len(example.inputs), *(zlib.crc32(text.text.encode()) for text in example.inputs)], dtype=np.int64)


class RankingBatch(NamedTuple):
    """The texts of B rows: Q = B queries, and D documents, of which the first B are the answers in the same order."""

    queries: Tensor
    """Vectors, float [Q, H]."""
    documents: Tensor
    """Vectors, float [D, H]."""
    query_hashes: Tensor
    """Int64 [Q]."""
    document_hashes: Tensor
    """Int64 [D]."""

    @classmethod
    def build(cls, outputs: Tensor, targets: Tensor) -> "RankingBatch":
        """Divide a batch into queries and documents.

        Args:
            outputs: vectors of all texts, [texts, H]: a query, its answer and its negatives, of each row.
            targets: stacked targets of `ranking_target`, int64 [B, 1 + N].
        """
        counts, hashes = targets[:, 0], targets[:, 1:]
        all_hashes = hashes[torch.arange(hashes.shape[1], device=hashes.device) < counts[:, None]]
        first = counts.cumsum(0) - counts
        is_negative = torch.ones_like(all_hashes, dtype=torch.bool)
        is_negative[torch.cat([first, first + 1])] = False
        documents = torch.cat([first + 1, is_negative.nonzero().flatten()])
        return cls(outputs[first], outputs[documents], all_hashes[first], all_hashes[documents])

    def cross_entropy(self, scores: Tensor) -> Tensor:
        """Return the mean cross-entropy of finding each query's own answer among all documents, float32 [].

        A text that answers an equal query, in any row, is no negative of it.

        Args:
            scores: score of each query with each document, float [Q, D].
        """
        is_same_query = self.query_hashes[:, None] == self.query_hashes
        is_same_text = self.document_hashes[: len(scores), None] == self.document_hashes
        is_answer = is_same_query.float() @ is_same_text.float() > 0
        is_answer.fill_diagonal_(False)  # the query's own
        targets = torch.arange(len(scores), device=scores.device)
        return F.cross_entropy(scores.masked_fill(is_answer, float("-inf")), targets)


def dot_products(x: Tensor, y: Tensor) -> Tensor:
    """Return the products of all pairs of vectors [N, H] and [M, H], float32 [N, M], also where autocast is on.

    In bfloat16, cosines near 1 have steps of 0.004, and a softmax over 20 times as much cannot tell close texts apart.
    """
    with torch.autocast(x.device.type, enabled=False):
        return x.float() @ y.float().T
