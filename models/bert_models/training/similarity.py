"""Train sentence embeddings: on pairs with a similarity score, or on pairs that belong together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bert_models.training.in_batch_negatives import dot_products, ranking_cross_entropy, text_hash
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Task, TextInput

__all__ = ["similarity_examples", "similarity_loss", "similarity_target"]

_COSINE_SCALE = 20.0
"""Inverse temperature of the softmax over a batch; the default of sentence-transformers' MultipleNegativesRankingLoss.
"""


def similarity_examples(task: Task, records: Sequence[Record]) -> list[Example]:
    """Return pairs with their score as target, or NaN if the file has no scores.

    Scores are divided by the largest absolute score if that exceeds 1, so that they are at most 1.

    Raises:
        DataError: only some rows have a score, a score is not a number, or all scores are zero.
    """
    scored = [record for record in records if "score" in record.fields]
    if scored and len(scored) < len(records):
        unscored = next(record for record in records if "score" not in record.fields)
        raise DataError(f"{unscored.where}: expected a score as in {scored[0].where}, or none in the whole file")
    if not scored:
        return [
            Example((TextInput(record.text()), TextInput(record.text("text_pair"))), float("nan")) for record in records
        ]
    examples = [task.example(record) for record in records]
    largest = max(abs(example.target) for example in examples)
    if largest == 0:
        raise DataError(f"{records[0].path}: expected scores that differ, found only zeros")
    return [example._replace(target=example.target / max(largest, 1.0)) for example in examples]


def similarity_target(example: Example) -> NDArray[np.float64]:
    """Return the score of the pair, and hashes of its texts, which float64 holds exactly: float64 [3]."""
    return np.array([example.target, *(text_hash(text.text) for text in example.inputs)], dtype=np.float64)


def similarity_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of B pairs, float32 [].

    With scores, it is the squared error of the cosine (SBERT's regression objective, Reimers & Gurevych,
    arXiv:1908.10084). Without, it is the cross-entropy of finding each first text's partner among all second texts of
    the batch, `softmax(20 * cos(u_i, v_j))` (in-batch negatives, Henderson et al., arXiv:1705.00652).

    Args:
        outputs: vectors, float [2 B, dimensions]; the two of a pair follow each other.
        targets: what `similarity_target` returned, float64 [B, 3]: scores in [-1, 1], or NaN for pairs without, and
            hashes.
    """
    first, second = outputs.float()[0::2], outputs.float()[1::2]
    scores, *hashes = targets.T
    if not bool(scores.isnan().any()):
        return F.mse_loss(F.cosine_similarity(first, second), scores.float())
    cosines = dot_products(F.normalize(first, dim=-1), F.normalize(second, dim=-1))
    return ranking_cross_entropy(_COSINE_SCALE * cosines, *hashes)
