"""What a checkpoint's `config.json` says about the task its head was trained for: reading it, and writing it.

Labels and the problem type are under the keys that `transformers` reads. What it has no key for is under
`task_specific_params`, by the task's name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bert_models.errors import CheckpointError
from bert_runtime.errors import BundleError
from bert_runtime.tasks import TASKS, SentenceEmbedding, Task, TextClassification, TokenClassification

__all__ = ["read_labels", "read_mask_token", "read_task", "read_task_params", "task_config_json"]

_PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
"""Our problem types to those of `config.json`."""

_LABELLED = (TextClassification.name, TokenClassification.name)
"""Tasks that have labels of their own."""

_MASK_TOKENS = ("[MASK]", "<mask>")
"""How vocabularies of this family spell a mask."""


def read_task(name: str, values: Mapping[str, Any], where: Path, **more: Any) -> Task:
    """The task with the settings in `values`, which are those of the file `where`, and `more` of other files.

    Raises `CheckpointError` for settings that are missing or cannot be right.
    """
    settings = {**read_task_params(name, values, where), **more}
    if name in _LABELLED:
        settings["labels"] = _labels(name, values, where)
    if name == TextClassification.name:
        # transformers leaves the problem type open until training, where a single label means a number.
        usual = "regression" if len(settings["labels"]) == 1 else "single_label_classification"
        found = values.get("problem_type") or usual
        supported = {theirs: ours for ours, theirs in _PROBLEM_TYPES.items()}
        if found not in supported:
            raise CheckpointError(f"{where}: expected a problem_type of {', '.join(supported)}, found {found!r}")
        settings["problem_type"] = supported[found]
    try:
        return TASKS[name].from_dict(settings)
    except BundleError as error:
        raise CheckpointError(f"{where}: {error}") from None


def read_task_params(name: str, values: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """What `task_specific_params` says about one task; raises `CheckpointError` where it is malformed."""
    every = values.get("task_specific_params") or {}
    found = every.get(name) or {} if isinstance(every, dict) else None
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: expected task_specific_params to hold an object per task, found {every!r:.80}")
    return dict(found)


def read_mask_token(tokenizer: Tokenizer, where: Path) -> dict[str, Any]:
    """What a vocabulary says about the fill-mask task; raises `CheckpointError` where it has no mask."""
    for token in _MASK_TOKENS:
        if (found := tokenizer.token_to_id(token)) is not None:
            return {"mask_token": token, "mask_token_id": found}
    raise CheckpointError(f"{where}: the vocabulary has neither of the mask tokens {', '.join(_MASK_TOKENS)}")


def read_labels(values: Mapping[str, Any]) -> list[str] | None:
    """The labels in `id2label`, in their order; `None` where it is missing or malformed."""
    names = values.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        return None
    return [str(names[str(i)]) for i in range(len(names))]


def _labels(name: str, values: Mapping[str, Any], where: Path) -> list[str]:
    labels = read_labels(values)
    if labels is None:
        raise CheckpointError(
            f"{where}: expected 'id2label' with the keys '0', '1', …, found {values.get('id2label')!r:.80}; a model "
            f"without a {name} head is fine-tuned first: bert-export train --task {name}"
        )
    return labels


def task_config_json(task: Task) -> dict[str, Any]:
    """The keys of `config.json` that describe a task: what `read_task` reads."""
    settings = task.to_dict()
    # A linear chain's scores are weights, a mask is the tokenizer's, pooling belongs to sentence-transformers' files.
    for key in ("name", "transitions", "mask_token", "mask_token_id"):
        settings.pop(key, None)
    values: dict[str, Any] = {}
    if isinstance(task, TextClassification | TokenClassification):
        labels = settings.pop("labels")
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if isinstance(task, TextClassification):
        values["problem_type"] = _PROBLEM_TYPES[settings.pop("problem_type")]
    if isinstance(task, SentenceEmbedding):
        settings = {"dimensions": task.dimensions}
    if settings:
        values["task_specific_params"] = {task.name: settings}
    return values
