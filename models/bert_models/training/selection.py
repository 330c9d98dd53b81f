"""The dev metric that decides which epoch is best."""

from collections.abc import Sequence

from bert_models.errors import TrainingError
from bert_models.training.settings import TrainSettings
from bert_runtime.tasks import Example, Task

__all__ = ["selectable_metrics", "selected_metric"]

_OTHERS = {
    ("text-classification", "accuracy"): ("macro_f1",),
    ("text-classification", "micro_f1"): ("macro_f1", "exact_match"),
    ("text-classification", "spearman"): ("pearson",),
    ("token-classification", "f1"): ("precision", "recall", "accuracy"),
    ("question-answering", "f1"): ("exact_match",),
    ("fill-mask", "accuracy"): ("top_5_accuracy",),
    ("replaced-token-detection", "f1"): ("accuracy",),
    ("sentence-embedding", "spearman"): ("pearson",),
    ("sentence-embedding", "ndcg_at_10"): ("mrr_at_10", "recall_at_1", "recall_at_10"),
    ("sparse-embedding", "mrr_at_10"): ("ndcg_at_10", "recall_at_1", "recall_at_10"),
    ("rerank", "ndcg_at_10"): ("mrr_at_10",),
}
"""By task and metric that decides by default, the other metrics that the task computes, of which higher is better."""


def selectable_metrics(task: Task, examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the metrics of a task's dev examples that may select the best epoch, the default one first."""
    default = task.metric_for(examples)
    return default, *_OTHERS.get((task.name, default), ())


def selected_metric(task: Task, examples: Sequence[Example], settings: TrainSettings) -> str:
    """Return the metric that selects the best epoch: that of the settings, or by default the task's.

    Classifiers with balanced class weights have macro F1 by default, which counts classes alike, too.

    Raises:
        TrainingError: the task does not compute the metric of the settings; the message lists those that it does.
    """
    known = selectable_metrics(task, examples)
    if settings.metric is None:
        is_balanced = settings.class_weights == "balanced" and "macro_f1" in known
        return "macro_f1" if is_balanced else known[0]
    if settings.metric not in known:
        raise TrainingError(
            f"metric: expected one of {', '.join(known)} for this {task.name} data, found {settings.metric!r}"
        )
    return settings.metric
