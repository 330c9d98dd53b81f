"""The tasks this project knows: one registry for the trainer, the exporter and the runtime."""

from collections.abc import Mapping
from typing import Any

from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks.base import Example, Result, Task, TextInput
from bert_runtime.tasks.next_sentence_prediction import NextSentence, NextSentencePrediction
from bert_runtime.tasks.sentence_embedding import Embedding, SentenceEmbedding
from bert_runtime.tasks.text_classification import (
    Classification,
    MultiLabelClassification,
    Regression,
    TextClassification,
)

__all__ = [
    "TASKS",
    "Classification",
    "Embedding",
    "Example",
    "FloatArray",
    "MultiLabelClassification",
    "NextSentence",
    "NextSentencePrediction",
    "Regression",
    "Result",
    "SentenceEmbedding",
    "Task",
    "TextClassification",
    "TextInput",
    "task_from_dict",
]

_TASKS: tuple[type[Task], ...] = (TextClassification, NextSentencePrediction, SentenceEmbedding)

TASKS: dict[str, type[Task]] = {task.name: task for task in _TASKS}
"""Every task by name."""


def task_from_dict(settings: Mapping[str, Any]) -> Task:
    """The task that `Task.to_dict` described; raises `BundleError` for one that is unknown or malformed."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise BundleError(f"unknown task {name!r}; this release knows {', '.join(TASKS)}")
    return TASKS[name].from_dict(settings)
