"""Evaluation of a model on a labelled file."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from bert_runtime.batching.streaming import divide
from bert_runtime.errors import DataError, InputError
from bert_runtime.model import Model
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Outputs, Task, TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.zero_shot.classifier import ZeroShotClassifier
from bert_runtime.zero_shot.evaluation import zero_shot_outputs, zero_shot_task

__all__ = ["build_examples", "check_metrics", "evaluate", "run_examples"]


def evaluate(
    model: Model | ZeroShotClassifier, records: Sequence[Record], progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """Return the task's metrics of a model on labelled records.

    Args:
        model: the model to evaluate. A zero-shot classifier has the metrics of a classifier by its candidate labels.
        records: rows of a labelled file, at least one.
        progress: called with the number of examples that have been processed since the last call.

    Returns:
        Metrics by name, such as `accuracy`.

    Raises:
        DataError: a row does not fit the task, or the metric is undefined for these rows.
    """
    if isinstance(model, ZeroShotClassifier):
        task: Task = zero_shot_task(model)
        examples = build_examples(task, model.model.tokenizer, records)
        outputs = zero_shot_outputs(model, _single_texts(examples, records), progress)
    else:
        task = model.task
        examples = build_examples(task, model.tokenizer, records)
        outputs = run_examples(model, examples, progress)
    return check_metrics(task.score(outputs, examples) | task.probability_quality(outputs, examples), records[0].path)


def _single_texts(examples: Sequence[Example], records: Sequence[Record]) -> list[TextInput]:
    """Return the inputs of examples; raise `DataError` for a pair."""
    texts = []
    for (text,), record in zip((example.inputs for example in examples), records, strict=True):
        if text.text_pair is not None:
            raise DataError(f"{record.where}: expected one text, found a pair; its second text would be the hypothesis")
        texts.append(text)
    return texts


def run_examples(
    model: Model, examples: Sequence[Example], progress: Callable[[int], None] = lambda done: None
) -> list[Outputs]:
    """Return the raw outputs of a model for the inputs of all examples, in order; see `evaluate` for `progress`."""
    inputs = [value for example in examples for value in example.inputs]
    outputs: list[Outputs] = []
    for chunk in divide(inputs):
        outputs.extend(model.outputs(chunk))
        progress(len(chunk) * len(examples) // len(inputs))
    return outputs


def build_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """Turn the rows of a labelled file into examples, and check that the model can process each.

    Raises:
        DataError: names the first row that does not fit, or is of another kind than others, before any inference.
    """
    task.check_rows(records)
    examples = []
    for record in records:
        example = task.example(record)
        try:
            for index, value in enumerate(example.inputs):
                (windows,) = tokenizer.encode([value])
                if (error := task.input_error(value, windows)) is not None:
                    raise InputError(error)
                if index == 0 and (error := task.target_error(example, windows, tokenizer)) is not None:
                    raise InputError(error)
        except InputError as error:
            raise DataError(f"{record.where}: {error.reason}") from None
        examples.append(example)
    return examples


def check_metrics(metrics: dict[str, float], path: Path) -> dict[str, float]:
    """Return the metrics of a labelled file, or raise `DataError` if its rows leave one undefined (NaN)."""
    undefined = [name for name, value in metrics.items() if math.isnan(value)]
    if undefined:
        raise DataError(
            f"{path}: {', '.join(undefined)} is not defined for these rows: expected scores that differ, or "
            "a document of grade 1 or more"
        )
    return metrics
