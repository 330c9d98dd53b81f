"""The registry of tasks, shared by the trainer, the exporter and the runtime."""

from collections.abc import Mapping
from typing import Any

from bert_runtime.errors import BundleError
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.feature_extraction import FeatureExtraction
from bert_runtime.tasks.fill_mask import FillMask
from bert_runtime.tasks.next_sentence_prediction import NextSentencePrediction
from bert_runtime.tasks.question_answering import QuestionAnswering
from bert_runtime.tasks.replaced_token_detection import ReplacedTokenDetection
from bert_runtime.tasks.reranking import Reranking
from bert_runtime.tasks.sentence_embedding import SentenceEmbedding
from bert_runtime.tasks.sparse_embedding import SparseEmbedding
from bert_runtime.tasks.text_classification import TextClassification
from bert_runtime.tasks.token_classification import TokenClassification

__all__ = ["TASKS", "task_from_dict"]

_TASKS: tuple[type[Task], ...] = (
    TextClassification,
    TokenClassification,
    QuestionAnswering,
    FillMask,
    NextSentencePrediction,
    ReplacedTokenDetection,
    SentenceEmbedding,
    SparseEmbedding,
    Reranking,
    FeatureExtraction,
)

TASKS: dict[str, type[Task]] = {task.name: task for task in _TASKS}
"""Task classes by name."""


def task_from_dict(settings: Mapping[str, Any]) -> Task:
    """Create a task from the settings that `Task.to_dict` returned.

    Args:
        settings: the settings, with the task's name under `name`.

    Raises:
        BundleError: the task is unknown, or a setting is missing or malformed.
    """
    name = settings.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise BundleError(f"unknown task {name!r}; this release knows {', '.join(TASKS)}")
    return TASKS[name].from_dict(settings)
