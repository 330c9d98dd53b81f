"""The task that a training run is about: what was asked for, with the labels that the data have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from bert_models.checkpoint import Checkpoint
from bert_models.errors import TrainingError
from bert_models.task_settings import read_labels
from bert_runtime.crf import is_bio
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TASKS,
    FillMask,
    QuestionAnswering,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = ["infer_task", "labels_without_example"]

_Reader = Callable[[Record], Sequence[str]]
"""A row's labels."""

_FROM_DATA = ("labels", "transitions", "no_answer")
"""Settings that the training data decide."""


def infer_task(
    name: str, source: Checkpoint, train: Sequence[Record], dev: Sequence[Record], settings: Mapping[str, Any]
) -> Task:
    """The task `name` for a model that starts from `source`, with `settings` of the caller's.

    Labels are those of the training file, in the order of the checkpoint's own where these are the same. Raises
    `TrainingError` for settings that the task does not have, and `DataError` naming all labels of the development file
    that training never shows.
    """
    if name not in TASKS:
        raise TrainingError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
    source.require_head(name)
    known = {each.name for each in fields(TASKS[name])} - set(_FROM_DATA)
    strange = sorted(set(settings) - known)
    if strange:
        raise TrainingError(f"{name} has no setting {', '.join(strange)}")
    try:
        return _task(name, source, train, dev, settings)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"{name}: {error}") from None


def _task(
    name: str, source: Checkpoint, train: Sequence[Record], dev: Sequence[Record], settings: Mapping[str, Any]
) -> Task:
    if name == TextClassification.name and settings.get("problem_type") == "regression":
        return TextClassification(labels=("score",), **settings)
    if name == TextClassification.name:
        labels = _labels(source, name, train, dev, _reader(settings.get("problem_type")))
        return TextClassification(labels=labels, **settings)
    if name == TokenClassification.name:
        labels = _labels(source, name, train, dev, Record.tags)
        # What is trained and measured is the first token of every word, so words are decoded by it, too.
        return TokenClassification(labels=labels, **{"aggregation": "first", "bio": is_bio(labels), **settings})
    if name == QuestionAnswering.name:
        return QuestionAnswering(no_answer=not all(each.answers() for each in (*train, *dev)), **settings)
    if name in (SentenceEmbedding.name, FillMask.name):
        return replace(source.task(name), **settings)
    return TASKS[name](**settings)


def labels_without_example(task: Task, records: Sequence[Record]) -> list[str]:
    """The task's labels that none of the records has; none for a task without labels."""
    if isinstance(task, TokenClassification):
        read: _Reader = Record.tags
    elif isinstance(task, TextClassification) and task.problem_type != "regression":
        read = _reader(task.problem_type)
    else:
        return []
    found = {label for record in records for label in read(record)}
    return [label for label in task.labels if label not in found]


def _reader(problem_type: str | None) -> _Reader:
    """How text classification reads a row's labels."""
    return Record.labels if problem_type == "multi_label" else lambda record: [record.label()]


def _labels(
    source: Checkpoint,
    name: str,
    train: Sequence[Record],
    dev: Sequence[Record],
    read: _Reader,
) -> tuple[str, ...]:
    """The labels of the training file in an order that does not depend on the order of its rows."""
    found = {label for record in train for label in read(record)}
    strange = {label: record for record in reversed(dev) for label in read(record) if label not in found}
    if strange:
        listed = ", ".join(f"{label!r} (line {record.line})" for label, record in sorted(strange.items()))
        raise DataError(f"{dev[0].path}: labels that {train[0].path} does not have: {listed}")
    if len(found) < 2:
        raise DataError(f"{train[0].path}: expected at least two different labels, found {', '.join(found) or 'none'}")
    own = read_labels(source.config_json) or [] if source.was_trained_for(name) else []
    if set(own) == found:
        return tuple(own)
    numeric = all(label.isdecimal() for label in found)
    return tuple(sorted(found, key=int if numeric else _tag_order))


def _tag_order(label: str) -> tuple[bool, str, str]:
    """`O` first, then the tags of one type together: `B-place`, `I-place`."""
    prefix, _, kind = label.partition("-") if label[:2] in ("B-", "I-") else ("", "", label)
    return label != "O", kind, prefix
