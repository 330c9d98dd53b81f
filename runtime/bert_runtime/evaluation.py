"""The task metric of a model on labelled rows."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from bert_runtime.errors import DataError, InputError
from bert_runtime.model import CHUNK_SIZE, Model
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Outputs, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["build_examples", "check_metrics", "evaluate"]


def evaluate(
    model: Model, records: Sequence[Record], progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """The task's metrics on `records`; `progress` is called with the number of further examples that are done.

    Raises `DataError` for a row that does not fit the task.
    """
    examples = build_examples(model.task, model.tokenizer, records)
    inputs = [each for example in examples for each in example.inputs]
    outputs: list[Outputs] = []
    for start in range(0, len(inputs), CHUNK_SIZE):  # as `Model.outputs` would split them, so that batches are the same
        chunk = inputs[start : start + CHUNK_SIZE]
        outputs.extend(model.outputs(chunk))
        progress(len(chunk) * len(examples) // len(inputs))
    return check_metrics(model.task.score(outputs, examples), records[0].path)


def build_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """The rows of a labelled file as examples that the model can answer and be compared with.

    Raises `DataError` naming the first row that is none, before a model has run.
    """
    examples = []
    for record in records:
        example = task.example(record)
        try:
            for place, value in enumerate(example.inputs):
                (windows,) = tokenizer.encode([value])
                if (problem := task.input_error(value, windows)) is not None:
                    raise InputError(problem)
                if place == 0 and (problem := task.target_error(example, windows, tokenizer)) is not None:
                    raise InputError(problem)
        except InputError as error:
            raise DataError(f"{record.where}: {str(error).removeprefix('input 0: ')}") from None
        examples.append(example)
    return examples


def check_metrics(metrics: dict[str, float], path: Path) -> dict[str, float]:
    """The metrics of a labelled file; raises `DataError` for one that its rows leave undefined."""
    undefined = [name for name, value in metrics.items() if math.isnan(value)]
    if undefined:
        raise DataError(f"{path}: {', '.join(undefined)} is not defined for these rows: expected scores that differ")
    return metrics
