"""Names of the model classes of `transformers` and `optimum` by task."""

from typing import Any

__all__ = ["AUTO_CLASSES", "auto_model"]

AUTO_CLASSES = {
    "text-classification": "SequenceClassification",
    "token-classification": "TokenClassification",
    "question-answering": "QuestionAnswering",
}
"""By task: the suffix of `AutoModelFor…` and `ORTModelFor…`. Other tasks' classes have other outputs than our heads."""


def auto_model(module: Any, prefix: str, task: str) -> Any:
    """Return `module`'s class for a task, such as `transformers.AutoModelForTokenClassification`."""
    return getattr(module, f"{prefix}For{AUTO_CLASSES[task]}")
