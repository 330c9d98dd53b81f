"""The task metric of a model on labelled rows."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_runtime.model import Model
from bert_runtime.records import Record

__all__ = ["evaluate"]

_CHUNK = 512
"""Examples between two progress reports."""


def evaluate(
    model: Model, records: Sequence[Record], progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """The task's metrics on `records`; `progress` is called with the number of further examples that are done.

    Raises `DataError` for a row that does not fit the task.
    """
    examples = [model.task.example(record) for record in records]
    outputs = []
    for start in range(0, len(examples), _CHUNK):
        chunk = examples[start : start + _CHUNK]
        outputs.append(model.outputs([each for example in chunk for each in example.inputs]))
        progress(len(chunk))
    return model.task.score(np.concatenate(outputs), examples)
