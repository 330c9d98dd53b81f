"""What `transformers` and `optimum` call the model class of a task."""

from typing import Any

__all__ = ["AUTO_CLASSES", "auto_model"]

AUTO_CLASSES = {
    "text-classification": "SequenceClassification",
    "token-classification": "TokenClassification",
    "question-answering": "QuestionAnswering",
}
"""By task, what follows `AutoModelFor` and `ORTModelFor`; other tasks' classes give something else than our heads."""


def auto_model(module: Any, prefix: str, task: str) -> Any:
    """`module`'s class for a task, such as `transformers.AutoModelForTokenClassification`."""
    return getattr(module, f"{prefix}For{AUTO_CLASSES[task]}")
