"""The tasks this project knows: one registry for the trainer, the exporter and the runtime."""

from collections.abc import Mapping
from typing import Any

from bert_runtime.errors import BundleError
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks.base import (
    Example,
    Outputs,
    Result,
    Task,
    TextInput,
    Vocabulary,
    WindowedText,
    largest_difference,
    sole_rows,
)
from bert_runtime.tasks.fill_mask import Filling, Fillings, FillMask
from bert_runtime.tasks.next_sentence_prediction import NextSentence, NextSentencePrediction
from bert_runtime.tasks.question_answering import Answer, Answers, QuestionAnswering
from bert_runtime.tasks.replaced_token_detection import ReplacedTokenDetection, ReplacedTokens
from bert_runtime.tasks.sentence_embedding import Embedding, SentenceEmbedding
from bert_runtime.tasks.text_classification import (
    Classification,
    MultiLabelClassification,
    Regression,
    TextClassification,
)
from bert_runtime.tasks.token_classification import Entities, Entity, TokenClassification

__all__ = [
    "TASKS",
    "Answer",
    "Answers",
    "Classification",
    "Embedding",
    "Entities",
    "Entity",
    "Example",
    "FillMask",
    "Filling",
    "Fillings",
    "FloatArray",
    "MultiLabelClassification",
    "NextSentence",
    "NextSentencePrediction",
    "Outputs",
    "QuestionAnswering",
    "Regression",
    "ReplacedTokenDetection",
    "ReplacedTokens",
    "Result",
    "SentenceEmbedding",
    "Task",
    "TextClassification",
    "TextInput",
    "TokenClassification",
    "Vocabulary",
    "WindowedText",
    "largest_difference",
    "sole_rows",
    "task_from_dict",
]

_TASKS: tuple[type[Task], ...] = (
    TextClassification,
    TokenClassification,
    QuestionAnswering,
    FillMask,
    NextSentencePrediction,
    ReplacedTokenDetection,
    SentenceEmbedding,
)

TASKS: dict[str, type[Task]] = {task.name: task for task in _TASKS}
"""Every task by name."""


def task_from_dict(settings: Mapping[str, Any]) -> Task:
    """The task that `Task.to_dict` described; raises `BundleError` for one that is unknown or malformed."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise BundleError(f"unknown task {name!r}; this release knows {', '.join(TASKS)}")
    return TASKS[name].from_dict(settings)
