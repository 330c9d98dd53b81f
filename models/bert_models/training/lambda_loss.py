"""LambdaLoss: a loss of lists of documents that bounds nDCG (Wang et al., CIKM 2018)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["graded_pairs", "lambda_loss"]

_MU = 10.0
"""Weight of NDCG-Loss2 beside LambdaRank in NDCG-Loss2++: the paper's, and that of sentence-transformers."""


def lambda_loss(logits: Tensor, grades: Tensor, is_document: Tensor) -> Tensor:
    """Return the NDCG-Loss2++ of Q lists, float32 []; 0 where no list has documents of different grades.

    Over all pairs of documents i, j of one list with grades y_i > y_j it is the mean of
    `-log2(sigmoid(s_i - s_j)) * (mu * |1/d(k) - 1/d(k+1)| + |1/d(r_i) - 1/d(r_j)|) * |g_i - g_j|`, with scores s,
    their ranks r, `k = |r_i - r_j|`, discounts `d(r) = log2(1 + r)` and gains `g = (2^y - 1) / ideal DCG`.

    Args:
        logits: scores, float [Q, D].
        grades: relevance of each document from 0, float [Q, D].
        is_document: False where a list has fewer than D documents, bool [Q, D].
    """
    scores, order = logits.masked_fill(~is_document, -torch.inf).sort(dim=1, descending=True)
    relevance, known = grades.gather(1, order), is_document.gather(1, order)
    ranks = torch.arange(1, logits.shape[1] + 1, device=logits.device)
    discounts = torch.log2(1 + ranks.float())
    gains = torch.where(known, 2**relevance - 1, 0.0)
    ideal = (gains.sort(dim=1, descending=True).values / discounts).sum(dim=1, keepdim=True)
    gains = gains / ideal.clamp(min=1e-10)
    weights = (_MU * _rank_distances(ranks) + (1 / discounts[:, None] - 1 / discounts).abs()) * _differences(
        gains
    ).abs()
    pairs = graded_pairs(relevance, known)
    margins = _differences(scores.masked_fill(~known, 0))
    losses = F.softplus(-margins) / math.log(2) * weights
    return torch.where(pairs, losses, 0.0).sum() / pairs.sum().clamp(min=1)


def graded_pairs(grades: Tensor, is_document: Tensor) -> Tensor:
    """Return which documents of a list have a higher grade than which others, bool [Q, D, D]; see `lambda_loss`."""
    return (_differences(grades) > 0) & is_document[:, :, None] & is_document[:, None, :]


def _differences(values: Tensor) -> Tensor:
    """Return the differences of all pairs of each list: [Q, D] → [Q, D, D]."""
    return values[:, :, None] - values[:, None, :]


def _rank_distances(ranks: Tensor) -> Tensor:
    """Return `|1/d(k) - 1/d(k+1)|` of two ranks k apart, 0 on the diagonal: [D] → [D, D]."""
    distances = (ranks[:, None] - ranks).abs().float()
    weights = 1 / torch.log2(1 + distances.clamp(min=1)) - 1 / torch.log2(2 + distances.clamp(min=1))
    return torch.where(distances > 0, weights, 0.0)
