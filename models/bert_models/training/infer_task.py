"""Infer the task of a training run: the requested task, with the labels of the training data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from bert_models.checkpoint import Checkpoint
from bert_models.errors import TrainingError
from bert_models.task_settings import read_labels, read_task_params
from bert_models.training.dev_split import LabelReader
from bert_models.training.distributed.process_group import no_progress
from bert_models.training.relevance import learns_logits
from bert_runtime.crf import is_bio
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TASKS,
    FillMask,
    QuestionAnswering,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = ["infer_task", "label_reader", "labels_without_example", "task_label_reader"]

_FROM_DATA = ("labels", "transitions", "no_answer", "vocab_size")
"""Fields of tasks that follow from the training data or the model, and so are no settings."""

_FROM_BASE = {Reranking.name: ("pooling", "dense_sizes", "dense_activations", "dense_norms")}
"""By task, fields that follow from the base's head."""

_CONTINUED = {
    TokenClassification.name: ("aggregation", "crf"),
    QuestionAnswering.name: ("max_answer_tokens", "n_best", "top_k"),
}
"""By task, settings that a base trained for it passes on: those that fit other weights and labels, too."""

_NOT_SAVED = {
    SentenceEmbedding.name: ("layer_norm", "prompt", "embedding_precision", "ranges"),
    SparseEmbedding.name: ("top_k", "min_weight"),
}
"""By task, fields that a checkpoint has no place for."""


def infer_task(
    name: str,
    source: Checkpoint,
    train: Sequence[Record],
    dev: Sequence[Record],
    settings: Mapping[str, Any],
    *,
    unknown_labels: str = "error",
    progress: Callable[[str], None] = no_progress,
) -> Task:
    """Return the task `name` with the labels of the training data.

    If a checkpoint for the same task has the same labels, their order is kept; else labels are sorted. Its settings
    are kept, too, unless `settings` has others, see `_CONTINUED`.

    Args:
        name: a key of `bert_runtime.tasks.TASKS`.
        source: the checkpoint that training starts from.
        train: rows of the training file.
        dev: rows of the dev file.
        settings: fields of the task's class, such as `problem_type` or `crf`.
        unknown_labels: one of `settings.UNKNOWN_LABELS`, for labels that only the dev file has; with `keep`, they are
            labels of the task.
        progress: called with a line of text where the rows call for another setting than the labels' names do.

    Raises:
        TrainingError: the task or a setting is unknown, or a checkpoint does not keep the setting.
        CheckpointError: the checkpoint's family has no head for the task.
        DataError: the dev file has labels that the training file lacks, and `unknown_labels` is `error`; the message
            names all of them.
    """
    if name not in TASKS:
        raise TrainingError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
    if not TASKS[name].has_labels:
        raise TrainingError(
            f"{name} has no labels to train on: it reads the layers of any checkpoint; train the encoder for another "
            f"task, such as fill-mask, and export it with --task {name}"
        )
    source.require_head(name)
    not_saved = set(_NOT_SAVED.get(name, ()))
    if lost := sorted(set(settings) & not_saved):
        raise TrainingError(
            f"{name}: a checkpoint does not keep {', '.join(lost)}; choose it when the model is exported or loaded"
        )
    known = {field.name for field in fields(TASKS[name])} - set(_FROM_DATA) - set(_FROM_BASE.get(name, ())) - not_saved
    if unknown := sorted(set(settings) - known):
        raise TrainingError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(sorted(known)) or 'none'}")
    try:
        return _task(name, source, train, dev, {**_base_settings(name, source), **settings}, unknown_labels, progress)
    except (TypeError, ValueError) as error:
        raise TrainingError(f"{name}: {error}") from None


def _task(
    name: str,
    source: Checkpoint,
    train: Sequence[Record],
    dev: Sequence[Record],
    settings: Mapping[str, Any],
    unknown_labels: str,
    progress: Callable[[str], None],
) -> Task:
    read = label_reader(name, settings.get("problem_type"))
    if name == TextClassification.name and read is None:
        return TextClassification(labels=("score",), **settings)
    if read is not None:
        labels = _labels(source, name, train, dev, read, unknown_labels)
    if name == TextClassification.name:
        return TextClassification(labels=labels, **settings)
    if name == TokenClassification.name:
        bio = settings["bio"] if "bio" in settings else is_bio(labels) and _follows_bio((*train, *dev), progress)
        # Training and evaluation use the first token of every word, so decoding does, too.
        return TokenClassification(labels=labels, **{"aggregation": "first", **settings, "bio": bio})
    if name == QuestionAnswering.name:
        return QuestionAnswering(no_answer=not all(record.answers() for record in (*train, *dev)), **settings)
    if name == Reranking.name:
        start = source.task(name) if source.has_relevance_head() else Reranking()
        activation = "identity" if learns_logits(train) else "sigmoid"
        return replace(start, **{"activation": activation, **settings})
    if name in (SentenceEmbedding.name, SparseEmbedding.name, FillMask.name):
        return replace(source.task(name), **settings)
    return TASKS[name](**settings)


def _base_settings(name: str, source: Checkpoint) -> dict[str, Any]:
    """Return the settings that the base passes on, if it was trained for the task: see `_CONTINUED`."""
    if not source.was_trained_for(name):
        return {}
    saved = read_task_params(name, source.config_json, source.path / "config.json")
    return {key: saved[key] for key in _CONTINUED.get(name, ()) if key in saved}


def _follows_bio(records: Sequence[Record], progress: Callable[[str], None]) -> bool:
    """Return whether each I-X of the rows follows B-X or I-X; report the others, as IOB1 has them.

    Decoding would forbid them, and the loss learns them.
    """
    violations = []
    for record in records:
        previous = None
        for tag in record.tags():
            if tag.startswith("I-") and previous not in (tag, f"B-{tag[2:]}"):
                violations.append(f"{tag!r} at {record.where}")
            previous = tag
    if violations:
        progress(
            f"the tags are not BIO: {len(violations)} I-… follow neither B-… nor I-… of their type, the first is "
            f"{violations[0]}; so sequences of any order are predicted (--bio predicts valid ones only)"
        )
    return not violations


def labels_without_example(task: Task, records: Sequence[Record]) -> list[str]:
    """Return the task's labels that no record has; an empty list for a task without labels."""
    read = task_label_reader(task)
    if read is None:
        return []
    assert isinstance(task, TextClassification | TokenClassification)
    found = {label for record in records for label in read(record)}
    return [label for label in task.labels if label not in found]


def label_reader(name: str, problem_type: str | None = None) -> LabelReader | None:
    """Return the function that reads a row's labels; `None` for a task whose labels do not come from the data."""
    if name == TokenClassification.name:
        return Record.tags
    if name != TextClassification.name or problem_type == "regression":
        return None
    return Record.labels if problem_type == "multi_label" else lambda record: [record.label()]


def task_label_reader(task: Task) -> LabelReader | None:
    """Return the function that reads the labels of a row for a task, see `label_reader`."""
    return label_reader(task.name, getattr(task, "problem_type", None))


def _labels(
    source: Checkpoint,
    name: str,
    train: Sequence[Record],
    dev: Sequence[Record],
    read: LabelReader,
    unknown_labels: str,
) -> tuple[str, ...]:
    """Return the labels of the training file in an order that does not depend on the order of its rows."""
    found = {label for record in train for label in read(record)}
    unknown = {label: record for record in reversed(dev) for label in read(record) if label not in found}
    if unknown and unknown_labels == "error":
        listed = ", ".join(f"{label!r} (line {record.line})" for label, record in sorted(unknown.items()))
        raise DataError(
            f"{dev[0].path}: labels that {train[0].path} does not have: {listed}; --unknown-labels skip leaves their "
            "rows out, keep makes them labels of the model"
        )
    if len(found) < 2:
        raise DataError(f"{train[0].path}: expected at least two different labels, found {', '.join(found) or 'none'}")
    if unknown_labels == "keep":
        found |= set(unknown)
    checkpoint_labels = read_labels(source.config_json) or [] if source.was_trained_for(name) else []
    if set(checkpoint_labels) == found:
        return tuple(checkpoint_labels)
    numeric = all(label.isdecimal() for label in found)
    return tuple(sorted(found, key=_number_order if numeric else _tag_order))


def _number_order(label: str) -> tuple[int, str]:
    """Return a sort key: by value, and of `1` and `01`, which are two labels, always the same one first."""
    return int(label), label


def _tag_order(label: str) -> tuple[bool, str, str]:
    """Return a sort key: `O` first, then the tags of each type together, such as `B-place`, `I-place`."""
    prefix, _, kind = label.partition("-") if label[:2] in ("B-", "I-") else ("", "", label)
    return label != "O", kind, prefix
