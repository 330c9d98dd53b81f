"""Weights of heads that are elsewhere than the others: in folders of modules, tied to the encoder, of other labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bert_models.cross_encoders import num_labels
from bert_models.errors import CheckpointError
from bert_models.task_settings import task_config_json
from bert_models.weights import read_weights
from bert_runtime.tasks import FillMask, Reranking, SentenceEmbedding, SparseEmbedding, Task, TextClassification

if TYPE_CHECKING:
    from bert_models.checkpoint import Checkpoint

__all__ = ["check_tied", "check_tied_setting", "has_other_labels", "module_tensors"]


def module_tensors(checkpoint: "Checkpoint", task: Task) -> dict[str, Tensor]:
    """Read the weights of a head that are in folders of their own; a dense layer without bias gets one of zeros."""
    if not isinstance(task, SentenceEmbedding | Reranking) or (isinstance(task, Reranking) and task.pooling is None):
        return {}
    tensors: dict[str, Tensor] = {}
    for module, folder in checkpoint.head_folders().items():
        if module != "pooling.score" or task.pooling == "attention":
            found = {key.partition(".")[2]: tensor for key, tensor in read_weights(folder).items()}
            if "bias" not in found and "weight" in found:
                found["bias"] = found["weight"].new_zeros(len(found["weight"]))
            tensors |= {f"{module}.{name}": tensor for name, tensor in found.items()}
    return tensors


def has_other_labels(checkpoint: "Checkpoint", task: Task) -> bool:
    """Return whether the checkpoint's head was trained with other labels than the task's, or with other numbers.

    The name of a regression's only number says nothing: transformers calls it `LABEL_0`.
    """
    if isinstance(task, Reranking):
        return num_labels(checkpoint.config_json) != 1
    if isinstance(task, TextClassification) and task.problem_type == "regression" and len(task.labels) == 1:
        kind = checkpoint.config_json.get("problem_type") or "regression"  # as `read_task` reads a single label
        return num_labels(checkpoint.config_json) != 1 or kind != "regression"
    labels = task_config_json(task).get("id2label")
    return labels is not None and labels != checkpoint.config_json.get("id2label")


def check_tied_setting(values: Mapping[str, Any], task: str, where: Path) -> None:
    """Raise `CheckpointError` if `config.json` says that a masked-language-model head is not tied."""
    if values.get("tie_word_embeddings") is False:
        raise CheckpointError(
            f"{where}: expected tie_word_embeddings to be true, found false: a {task} head with an output matrix of "
            "its own is not supported"
        )


def check_tied(checkpoint: "Checkpoint", task: Task, tensors: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` if the output matrix or bias of a masked-language-model head is not tied."""
    if not isinstance(task, FillMask | SparseEmbedding):
        return
    family = checkpoint.family
    bias = family.head_weights[FillMask.name]["bias"]
    embedding = f"{family.encoder_weights['embeddings.token']}.weight"
    pairs = [(key, name) for key in family.decoder_weights for name in (family.prefix + embedding, embedding)]
    pairs += [(key.replace(".weight", ".bias"), bias) for key in family.decoder_weights]
    for key, name in pairs:
        if key in tensors and name in tensors and not torch.equal(tensors[key], tensors[name]):
            raise CheckpointError(
                f"{checkpoint.path}: {key} differs from {name}: a masked-language-model head with an output matrix "
                "or bias of its own is not supported"
            )
