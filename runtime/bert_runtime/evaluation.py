"""The task metric of a model on labelled rows."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from bert_runtime.errors import DataError
from bert_runtime.model import WINDOW, Model
from bert_runtime.records import Record
from bert_runtime.tasks import Outputs

__all__ = ["checked_metrics", "evaluate"]


def evaluate(
    model: Model, records: Sequence[Record], progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """The task's metrics on `records`; `progress` is called with the number of further examples that are done.

    Raises `DataError` for a row that does not fit the task.
    """
    examples = [model.task.example(record) for record in records]
    inputs = [each for example in examples for each in example.inputs]
    outputs: list[Outputs] = []
    for start in range(0, len(inputs), WINDOW):  # as `Model.outputs` would split them, so that batches are the same
        chunk = inputs[start : start + WINDOW]
        outputs.extend(model.outputs(chunk))
        progress(len(chunk) * len(examples) // len(inputs))
    return checked_metrics(model.task.score(outputs, examples), records[0].path)


def checked_metrics(metrics: dict[str, float], path: Path) -> dict[str, float]:
    """The metrics of a labelled file; raises `DataError` for one that its rows leave undefined."""
    undefined = [name for name, value in metrics.items() if math.isnan(value)]
    if undefined:
        raise DataError(f"{path}: {', '.join(undefined)} is not defined for these rows: expected scores that differ")
    return metrics
