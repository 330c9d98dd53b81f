"""Train sparse embeddings on pairs that belong together: in-batch negatives, and SPLADE's regularizer of FLOPs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_models.training.in_batch_negatives import dot_products, ranking_cross_entropy, text_hash
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
        DataError: a row has no pair of texts.
    """
    examples = []
    for record in records:
        example = task.example(record)
        negative = record.optional_text("negative")
        more = () if negative is None else (TextInput(negative),)
        examples.append(example._replace(inputs=(*example.inputs, *more)))
    return examples


def ranking_target(example: Example) -> NDArray[np.int64]:
    """Return the number of the example's texts, and hashes of the query, of its answer and of the negative.

    Returns:
        An array, int64 [4]; the last number is 0 where there is no negative.
    """
    hashes = [text_hash(text.text) for text in example.inputs]
    return np.array([len(example.inputs), *hashes, 0][:4], dtype=np.int64)


def ranking_loss(outputs: Tensor, targets: Tensor, regularizer: Regularizer) -> Tensor:
    """Return the mean loss of B examples, float32 [].

    It is the cross-entropy of finding each query's own text among all texts of the batch by dot product (in-batch
    negatives, as sentence-transformers' SparseMultipleNegativesRankingLoss), plus the regularizer.

    Args:
        outputs: weights of all texts, float [texts, V]: the query, its text, and the negative if there is one, of each
            example.
        targets: what `ranking_target` returned, int64 [B, 4].
        regularizer: weights of the regularizer.
    """
    weights, (counts, asked, answers, negatives) = outputs.float(), targets.T
    first, has_negative = counts.cumsum(0) - counts, counts > 2
    queries, documents = weights[first], weights[torch.cat([first + 1, first[has_negative] + 2])]
    texts = torch.cat([answers, negatives[has_negative]])
    ranking = ranking_cross_entropy(dot_products(queries, documents), asked, texts)
    penalty = regularizer.query * flops(queries) + regularizer.document * flops(documents)
    return ranking + regularizer.factor * penalty


def flops(weights: Tensor) -> Tensor:
    """Return the sum over the vocabulary of the squared mean weight (Paria et al., arXiv:2004.05665), float32 [].

    Args:
        weights: float [N, V].
    """
    return (weights.mean(dim=0) ** 2).sum()
