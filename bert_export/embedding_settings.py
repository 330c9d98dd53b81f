"""Settings of sentence-embedding that an export changes: what a checkpoint does not say, or says otherwise."""

from dataclasses import replace

from bert_export.errors import ExportError
from bert_models import Checkpoint
from bert_models.sentence_transformers import is_sentence_transformers_folder
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.tasks.sentence_embedding import PARAMETER_FREE_POOLINGS

__all__ = ["has_pooling", "with_embedding_settings"]


def has_pooling(source: Checkpoint) -> bool:
    """Return whether a checkpoint says how the vectors of tokens are pooled."""
    return is_sentence_transformers_folder(source.path) and not source.is_cross_encoder


def with_embedding_settings(
    task: Task, source: Checkpoint, pooling: str | None, dimensions: int | None, *, layer_norm: bool
) -> Task:
    """Return the task with other settings of its embeddings.

    Args:
        task: the task; all but sentence-embedding take none.
        source: the checkpoint.
        pooling: one of `PARAMETER_FREE_POOLINGS`, for a checkpoint that does not say; `None` leaves it as it is.
        dimensions: number of first dimensions to keep; `None` as above.
        layer_norm: whether to normalize the whole vector by its mean and variance before.

    Raises:
        ExportError: the task has no embeddings, the checkpoint says another pooling, or a value is out of range.
    """
    given = {"pooling": pooling is not None, "dimensions": dimensions is not None, "layer_norm": layer_norm}
    if not any(given.values()):
        return task
    if not isinstance(task, SentenceEmbedding):
        names = ", ".join(name for name, is_given in given.items() if is_given)
        raise ExportError(f"expected {names} with sentence-embedding alone, found the task {task.name}")
    if pooling is not None:
        if pooling not in PARAMETER_FREE_POOLINGS:
            raise ExportError(f"expected a pooling of {', '.join(PARAMETER_FREE_POOLINGS)}, found {pooling!r:.50}")
        if has_pooling(source) and pooling != task.pooling:
            raise ExportError(
                f"{source.path}: its modules.json says {task.pooling} pooling, found {pooling!r}; the option is for "
                "checkpoints that do not say"
            )
        task = replace(task, pooling=pooling)
    if layer_norm:
        task = replace(task, layer_norm=True, normalize=True)
    if dimensions is None:
        return task
    if not 1 <= dimensions <= task.dimensions:
        raise ExportError(f"expected a number of dimensions of 1 to {task.dimensions}, found {dimensions}")
    return replace(task, dimensions=dimensions)
