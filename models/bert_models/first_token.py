"""Which models read the last hidden state of the first token alone, so that other tokens may leave before it."""

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError
from bert_runtime.tasks import Reranking, Task, TextClassification

__all__ = ["check_prunable", "reads_first_token_only"]


def reads_first_token_only(config: EncoderConfig, task: Task) -> bool:
    """Return whether the task's head reads the last hidden state of the first token alone."""
    is_classifier = isinstance(task, TextClassification) or (isinstance(task, Reranking) and task.pooling is None)
    return task.reads_first_token_only and not (is_classifier and config.classifier_pooling != "cls")


def check_prunable(config: EncoderConfig, task: Task) -> None:
    """Raise `ConfigError` if tokens are to leave that the task's head reads."""
    if config.token_pruning is None or reads_first_token_only(config, task):
        return
    pooling = config.classifier_pooling if task.reads_first_token_only else getattr(task, "pooling", None)
    how = f" with {pooling} pooling" if pooling else ""
    raise ConfigError(
        f"token pruning ({config.token_pruning}) is for models whose head reads the first token alone: "
        "text-classification, reranking, next-sentence-prediction, and sentence-embedding with cls pooling; "
        f"{task.name}{how} reads every token of a text"
    )
