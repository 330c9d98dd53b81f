"""Check which head a checkpoint was trained with: by the architecture that it names, and by the weights that it has.

Heads of different tasks may have weights of one name: `classifier` reads whole texts in
`BertForSequenceClassification`, tokens in `BertForTokenClassification`, and choices in `BertForMultipleChoice`. Loaded
for another task, such weights fit and mean nothing.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_models.errors import CheckpointError
from bert_models.families import Family
from bert_runtime.tasks import (
    FeatureExtraction,
    FillMask,
    NextSentencePrediction,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = ["check_architecture", "check_architectures", "check_head_weights", "check_label_count", "named_tasks"]

_HEAD = re.compile(r"For[A-Z]\w*$")
"""The part of an architecture's name that names its head, whatever the family."""

_SAME_HEAD = {SparseEmbedding.name: FillMask.name, Reranking.name: TextClassification.name}
"""Tasks whose head is that of another task, whose name stands for both in this module."""

_ENCODER_TASKS = (SentenceEmbedding.name, FeatureExtraction.name)
"""Tasks that need the encoder only."""

_UNSUPPORTED_HEADS = {"ForMultipleChoice": "multiple-choice"}
"""Heads of the supported families that no task has, whose weights fit those of others."""


def named_tasks(family: Family, values: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """Return the tasks whose head `architectures` of `config.json` names; empty if it does not say.

    Raises:
        CheckpointError: it names a head that no task has.
    """
    by_head: dict[str, tuple[str, ...]] = {
        found[0]: (task,)
        for task, name in family.architectures.items()
        if task not in _SAME_HEAD and (found := _HEAD.search(name))
    }
    if family.pretraining_architecture is not None and (found := _HEAD.search(family.pretraining_architecture)):
        by_head[found[0]] = (FillMask.name, NextSentencePrediction.name)
    heads = [found[0] for name in values.get("architectures") or [] if (found := _HEAD.search(name))]
    tasks = tuple(task for head in heads for task in by_head.get(head, ()))
    unsupported = next((head for head in heads if head in _UNSUPPORTED_HEADS), None)
    if not tasks and unsupported is not None:
        raise CheckpointError(
            f"{where}: the checkpoint is a {_UNSUPPORTED_HEADS[unsupported]} model "
            f"({', '.join(values['architectures'])}), and no task here has that head; its encoder can be exported with "
            f"--task {SentenceEmbedding.name}, or trained with a new head: bert-export train --base"
        )
    return tasks


def check_architectures(values: Mapping[str, Any], where: Path) -> None:
    """Raise `CheckpointError` unless `architectures` is a list of names, or not set."""
    found = values.get("architectures")
    if found is not None and not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise CheckpointError(f"{where}: expected architectures to be a list of names, found {found!r:.80}")


def check_architecture(family: Family, values: Mapping[str, Any], task: str, where: Path) -> None:
    """Raise `CheckpointError` if `config.json` names another head, whose weights have the names of `task`'s."""
    task = _SAME_HEAD.get(task, task)
    if task in _ENCODER_TASKS:
        return
    trained = named_tasks(family, values, where)
    if trained and task not in trained and _output(family, task) in {_output(family, name) for name in trained}:
        raise CheckpointError(
            f"{where}: the checkpoint is a {' and '.join(trained)} model ({', '.join(values['architectures'])}), not "
            f"one for {task}; {_what_to_do(trained, task)}"
        )


def check_head_weights(
    family: Family, values: Mapping[str, Any], keys: Collection[str], task: str, where: Path
) -> None:
    """Raise `CheckpointError` if none of the weights of `task`'s own head is among the checkpoint's keys."""
    own = _own_names(family, _SAME_HEAD.get(task, task))
    if task in _ENCODER_TASKS or not own or _has_any(keys, own):
        return
    tasks = [name for name in family.head_weights if name not in _SAME_HEAD]
    found = [name for name in tasks if (names := _own_names(family, name)) and _has_any(keys, names)]
    found = [name for name in found if name in named_tasks(family, values, where)] or found
    heads = f"the head of {' and '.join(found)}" if found else "no head"
    raise CheckpointError(
        f"{where}: the checkpoint has no {task} head: its weights are missing {', '.join(own)}, and hold {heads}; "
        f"{_what_to_do(found, task)}"
    )


def check_label_count(family: Family, tensors: Mapping[str, Tensor], task: Task, where: Path) -> None:
    """Raise `CheckpointError` unless the labels are as many as the outputs of a classifier's head."""
    if not isinstance(task, TextClassification | TokenClassification | Reranking):
        return
    key = family.checkpoint_key("head.output.weight", _SAME_HEAD.get(task.name, task.name))
    weight = tensors.get(key)
    if weight is None or weight.ndim != 2:
        return
    shape = f"({key} of shape {list(weight.shape)})"
    if not isinstance(task, Reranking):
        if len(weight) != len(task.labels):
            raise CheckpointError(
                f"{where / 'config.json'}: id2label has {len(task.labels)} labels, and the head in the weights has "
                f"{len(weight)} outputs {shape}; give id2label a name for each output"
            )
    elif task.pooling is None and len(weight) != 1:
        raise CheckpointError(
            f"{where}: expected a head of one output for {task.name}, found {len(weight)} {shape}; "
            f"{_what_to_do([TextClassification.name], task.name)}"
        )


def _what_to_do(trained: Collection[str], task: str) -> str:
    """Return what the checkpoint can be exported for, and how it would become a model for `task`."""
    tasks = [*(name for name in trained if name != SentenceEmbedding.name), SentenceEmbedding.name]
    return f"export it with --task {' or '.join(tasks)}, or train a new head: bert-export train --task {task} --base"


def _output(family: Family, task: str) -> str | None:
    """Return the checkpoint's name of the last layer of a task's head; `None` where it has none of its own."""
    return family.head_weights.get(task, {}).get("output")


def _own_names(family: Family, task: str) -> list[str]:
    """Return the checkpoint's names of what only heads have: not the pooler, which encoders may have, nor a CRF."""
    names = family.head_weights[task]
    return [
        name
        for module, name in names.items()
        if not name.startswith(family.prefix) and not module.startswith("crf.") and "{n}" not in name
    ]


def _has_any(keys: Collection[str], names: Collection[str]) -> bool:
    """Return whether any of the keys is one of the named modules' parameters."""
    return any(key == name or key.rpartition(".")[0] == name for key in keys for name in names)
