"""ERNIE (Sun et al., arXiv:1904.09223, 1907.12412): BERT's encoder, whose inputs may have a task, too."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert_models.families.bert import BERT, bert_size

__all__ = ["ERNIE"]


def _add_task(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Add the embedding of task 0, which `transformers` uses by default, to those of the segments."""
    found = dict(tensors)
    for name in [name for name in found if name.endswith("task_type_embeddings.weight")]:
        segments = name.replace("task_type_embeddings", "token_type_embeddings")
        task = found.pop(name)
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
