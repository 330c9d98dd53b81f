"""Train sentence embeddings: on pairs with a similarity score, or on queries and the texts that answer them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bert_models.training.in_batch_negatives import RankingBatch, dot_products, ranking_example, ranking_target
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, SentenceEmbedding

__all__ = ["similarity_examples", "similarity_loss", "similarity_target"]

_COSINE_SCALE = 20.0
"""Inverse temperature of the softmax over a batch; the default of sentence-transformers' MultipleNegativesRankingLoss.
"""


def similarity_examples(task: SentenceEmbedding, records: Sequence[Record]) -> list[Example]:
    """Return pairs with their score as target, or queries with answers and negatives if the file has no scores.

    Scores are divided by the largest absolute score if that exceeds 1, so that they are at most 1.

    Raises:
        DataError: only some rows have a score, a score is not a number, or all scores are zero.
    """
    task.check_rows(records)
    if "score" not in records[0].fields:
        return [ranking_example(task, record) for record in records]
    examples = [task.example(record) for record in records]
    largest = max(abs(example.target) for example in examples)
    if largest == 0:
        raise DataError(f"{records[0].path}: expected scores that differ, found only zeros")
    return [example._replace(target=example.target / max(largest, 1.0)) for example in examples]


def similarity_target(example: Example) -> NDArray[np.float32] | NDArray[np.int64]:
    """Return the score of a pair, float32 [], or what `ranking_target` returns for a query and its texts."""
    if isinstance(example.target, str):
        return ranking_target(example)
    return np.array(example.target, dtype=np.float32)


def similarity_loss(outputs: Tensor, targets: Tensor, *, dot: bool = False) -> Tensor:
    """Return the mean loss of B rows, float32 [].

    With scores, it is the squared error of the cosine (SBERT's regression objective, Reimers & Gurevych,
    arXiv:1908.10084). Without, it is the cross-entropy of finding each query's answer among all answers and negatives
    of the batch, `softmax(20 * cos(u_i, v_j))` (in-batch negatives, Henderson et al., arXiv:1705.00652).

    Args:
        outputs: vectors of all texts, float [texts, dimensions]; those of a row follow each other.
        targets: stacked targets of `similarity_target`: scores in [-1, 1], float32 [B], or int64 [B, 1 + N].
        dot: rank by the dot product, not scaled, instead of the cosine.
    """
    outputs = outputs.float()
    if targets.is_floating_point():
        return F.mse_loss(F.cosine_similarity(outputs[0::2], outputs[1::2]), targets.float())
    batch = RankingBatch.build(outputs if dot else F.normalize(outputs, dim=-1), targets)
    scores = dot_products(batch.queries, batch.documents)
    return batch.cross_entropy(scores if dot else _COSINE_SCALE * scores)
