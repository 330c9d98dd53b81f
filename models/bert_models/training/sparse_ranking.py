"""Train sparse embeddings on pairs that belong together: in-batch negatives, and SPLADE's regularizer of FLOPs."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bert_runtime.records import Record
from bert_runtime.tasks import Example, Task, TextInput

__all__ = ["Regularizer", "flops", "ranking_examples", "ranking_loss", "ranking_target"]

_WARMUP = 1 / 3
"""Part of the training over which the regularizer's weights rise; that of sentence-transformers' scheduler."""


class Regularizer(NamedTuple):
    """Weights of the FLOPs regularizer (Formal et al., arXiv:2109.10086, equation 5)."""

    query: float
    """λ_q."""
    document: float
    """λ_d."""
    progress: float = 1.0
    """Part of the training that is done."""

    @property
    def factor(self) -> float:
        """Return what both weights are multiplied by: it rises quadratically to 1."""
        return min(1.0, self.progress / _WARMUP) ** 2


def ranking_examples(task: Task, records: Sequence[Record]) -> list[Example]:
    """Return for each row the query, the text that answers it, and a text that does not, if the row has a `negative`.

    Raises:
        DataError: A row has no pair of texts.
    """
    examples = []
    for record in records:
        example = task.example(record)
        negative = record.optional_text("negative")
        more = () if negative is None else (TextInput(negative),)
        examples.append(example._replace(inputs=(*example.inputs, *more)))
    return examples


def ranking_target(example: Example) -> NDArray[np.int64]:
    """Return the number of the example's texts, and a hash of the one that answers the query: int64 [2]."""
    return np.array([len(example.inputs), zlib.crc32(example.inputs[1].text.encode())], dtype=np.int64)


def ranking_loss(outputs: Tensor, targets: Tensor, regularizer: Regularizer) -> Tensor:
    """Return the mean loss of B examples, float32 [].

    It is the cross-entropy of finding each query's own text among all texts of the batch by dot product (in-batch
    negatives, as sentence-transformers' SparseMultipleNegativesRankingLoss), plus the regularizer. A text that answers
    two queries of the batch is no negative of either.

    Args:
        outputs: Weights of all texts, float [texts, V]: the query, its text, and the negative if there is one, of each
            example.
        targets: What `ranking_target` returned, int64 [B, 2].
        regularizer: Weights of the regularizer.
    """
    weights, (counts, hashes) = outputs.float(), targets.T
    first = counts.cumsum(0) - counts
    queries, answers, negatives = weights[first], weights[first + 1], weights[first[counts > 2] + 2]
    documents = torch.cat([answers, negatives])
    same = (hashes[:, None] == hashes[None, :]) & ~torch.eye(len(hashes), dtype=torch.bool, device=hashes.device)
    scores = queries @ documents.T
    scores = scores.masked_fill(F.pad(same, (0, len(negatives))), float("-inf"))
    ranking = F.cross_entropy(scores, torch.arange(len(queries), device=scores.device))
    penalty = regularizer.query * flops(queries) + regularizer.document * flops(documents)
    return ranking + regularizer.factor * penalty


def flops(weights: Tensor) -> Tensor:
    """Return the sum over the vocabulary of the squared mean weight (Paria et al., arXiv:2004.05665), float32 [].

    Args:
        weights: float [N, V].
    """
    return (weights.mean(dim=0) ** 2).sum()
