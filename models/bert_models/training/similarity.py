"""Training sentence embeddings: pairs with a score to match, or pairs that belong together."""

from collections.abc import Sequence

from torch import Tensor, arange
from torch.nn import functional as F

from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Task, TextInput

__all__ = ["similarity_examples", "similarity_loss"]

_SCALE = 20.0
"""Cosines are multiplied by this before the softmax over a batch, as sentence-transformers does."""


def similarity_examples(task: Task, records: Sequence[Record]) -> list[Example]:
    """Pairs with their score, brought to at most 1; in a file without scores, pairs that are all alike (NaN).

    Raises `DataError` for a file in which only some rows have a score, or whose scores are no similarities.
    """
    scored = [record for record in records if "score" in record.fields]
    if scored and len(scored) < len(records):
        bare = next(record for record in records if "score" not in record.fields)
        raise DataError(f"{bare.where}: expected a score as in {scored[0].where}, or none in the whole file")
    if not scored:
        return [
            Example((TextInput(record.text()), TextInput(record.text("text_pair"))), float("nan")) for record in records
        ]
    examples = [task.example(record) for record in records]
    largest = max(abs(example.target) for example in examples)
    if largest == 0:
        raise DataError(f"{records[0].path}: expected scores that differ, found only zeros")
    return [example._replace(target=example.target / max(largest, 1.0)) for example in examples]


def similarity_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of B pairs, whose vectors follow each other in `outputs` [2 B, dimensions]; targets float32 [B].

    With scores, the squared error of the cosine (Reimers & Gurevych, arXiv:1908.10084). Without (NaN), each first text
    must find its second among those of the batch (Henderson et al., arXiv:1705.00652).
    """
    first, second = outputs.float()[0::2], outputs.float()[1::2]
    if not bool(targets.isnan().any()):
        return F.mse_loss(F.cosine_similarity(first, second), targets)
    cosines = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    return F.cross_entropy(_SCALE * cosines, arange(len(targets), device=targets.device))
