"""Train sparse embeddings on pairs that belong together: in-batch negatives, and SPLADE's regularizer of FLOPs."""

from typing import NamedTuple

from torch import Tensor

from bert_models.training.in_batch_negatives import RankingBatch, dot_products

__all__ = ["Regularizer", "flops", "ranking_loss"]

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


def ranking_loss(outputs: Tensor, targets: Tensor, regularizer: Regularizer) -> Tensor:
    """Return the mean loss of B examples, float32 [].

    It is the cross-entropy of finding each query's own text among all texts of the batch by dot product (in-batch
    negatives, as sentence-transformers' SparseMultipleNegativesRankingLoss), plus the regularizer.

    Args:
        outputs: weights of all texts, float [texts, V], see `RankingBatch.build`.
        targets: stacked targets of `ranking_target`, int64 [B, 1 + N].
        regularizer: weights of the regularizer.
    """
    batch = RankingBatch.build(outputs.float(), targets)
    ranking = batch.cross_entropy(dot_products(batch.queries, batch.documents))
    penalty = regularizer.query * flops(batch.queries) + regularizer.document * flops(batch.documents)
    return ranking + regularizer.factor * penalty


def flops(weights: Tensor) -> Tensor:
    """Return the sum over the vocabulary of the squared mean weight (Paria et al., arXiv:2004.05665), float32 [].

    Args:
        weights: float [N, V].
    """
    return (weights.mean(dim=0) ** 2).sum()
