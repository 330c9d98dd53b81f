"""ERNIE (Sun et al., arXiv:1904.09223, 1907.12412): BERT's encoder, whose inputs may have a task, too."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert_models.errors import CheckpointError
from bert_models.families.bert import BERT, bert_size

__all__ = ["ERNIE"]


_TASKS = "task_type_embeddings.weight"


def _add_task(tensors: Mapping[str, Any], config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Add the embedding of task 0, which `transformers` uses by default, to those of the segments.

    Without `use_task_id`, `transformers` does not read it.
    """
    tasks = {name: tensor for name, tensor in tensors.items() if name.endswith(_TASKS)}
    found = {name: tensor for name, tensor in tensors.items() if name not in tasks}
    if not config_json.get("use_task_id", False):
        return found
    if not tasks:
        raise CheckpointError(f"expected {_TASKS}, since use_task_id of config.json is true, found no such weights")
    for name, task in tasks.items():
        segments = name.replace("task_type_embeddings", "token_type_embeddings")
        if segments in found and found[segments].shape[1:] == task.shape[1:]:
            found[segments] = found[segments] + task[0]
    return found


ERNIE = replace(
    BERT,
    name="ernie",
    prefix="ernie.",
    canonical_weights=_add_task,
    head_weights={
        task: {module: name.replace("bert.pooler", "ernie.pooler") for module, name in names.items()}
        for task, names in BERT.head_weights.items()
    },
    architectures={task: name.replace("Bert", "Ernie") for task, name in BERT.architectures.items()},
    base_architecture="ErnieModel",
    pretraining_architecture="ErnieForPreTraining",
    ignored_weights=BERT.ignored_weights.replace("bert", "ernie"),
    sizes={"base": bert_size(12, 768, vocab_size=40000, max_positions=2048, type_vocab_size=4)},
)
