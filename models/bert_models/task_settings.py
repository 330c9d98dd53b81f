"""Task settings in a checkpoint's `config.json`: read and write them.

Labels and problem type use the keys of `transformers`. Settings it has no key for are in `task_specific_params`, by
task name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bert_models.config import EncoderConfig
from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.special_tokens import MASK_TOKENS, find_special_token
from bert_runtime.errors import BundleError
from bert_runtime.tasks import (
    TASKS,
    FeatureExtraction,
    Reranking,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

__all__ = [
    "default_labels",
    "read_dimensions",
    "read_feature_extraction",
    "read_labels",
    "read_mask_token",
    "read_task",
    "read_task_params",
    "task_config_json",
]

_PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
"""Our problem types to the values of `problem_type` in `config.json`."""

_LABELLED = (TextClassification.name, TokenClassification.name)
"""Tasks whose labels are in `config.json`."""

_RELEVANCE_LABEL = "LABEL_0"
"""Name of a reranker's only label, as transformers calls it."""


def default_labels(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a trained head whose `config.json` names none: `num_labels` of them, by default two."""
    count = config_json.get("num_labels")
    count = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 2
    return {"id2label": {str(number): f"LABEL_{number}" for number in range(count)}}


def read_task(name: str, values: Mapping[str, Any], where: Path, **more: Any) -> Task:
    """Read a task's settings from `config.json`.

    Args:
        name: a key of `bert_runtime.tasks.TASKS`.
        values: the contents of `config.json`.
        where: the file, for error messages.
        **more: settings from other files, which take precedence.

    Raises:
        CheckpointError: settings are missing or invalid.
    """
    settings = {**read_task_params(name, values, where), **more}
    if name in _LABELLED:
        settings["labels"] = _labels(name, values, where)
    if name == TextClassification.name:
        # transformers leaves problem_type unset until training, and takes a single label for regression.
        default = "regression" if len(settings["labels"]) == 1 else "single_label_classification"
        found = values.get("problem_type") or default
        supported = {theirs: ours for ours, theirs in _PROBLEM_TYPES.items()}
        if not isinstance(found, str) or found not in supported:
            raise CheckpointError(f"{where}: expected a problem_type of {', '.join(supported)}, found {found!r:.80}")
        settings["problem_type"] = supported[found]
    try:
        return TASKS[name].from_dict(settings)
    except BundleError as error:
        raise CheckpointError(f"{where}: {error}") from None


def read_dimensions(values: Mapping[str, Any], where: Path, default: int) -> int:
    """Return the number of dimensions of sentence embeddings in `config.json`, or `default`.

    Raises:
        CheckpointError: it is no positive whole number.
    """
    found = read_task_params(SentenceEmbedding.name, values, where).get("dimensions", default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CheckpointError(f"{where}: expected dimensions to be a whole number from 1, found {found!r:.80}")
    return found


def read_feature_extraction(config: EncoderConfig, values: Mapping[str, Any], where: Path) -> Task:
    """Read the settings of feature extraction from an encoder's configuration; by default the last layer is read.

    Raises:
        CheckpointError: settings are invalid.
    """
    name = FeatureExtraction.name
    layers = read_task_params(name, values, where).get("layers", [config.num_layers])
    return read_task(name, values, where, layers=layers, hidden_size=config.hidden_size, num_layers=config.num_layers)


def read_task_params(name: str, values: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return the settings of the task `name` in `task_specific_params`; raise `CheckpointError` if malformed."""
    by_task = values.get("task_specific_params") or {}
    found = by_task.get(name) or {} if isinstance(by_task, dict) else None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{where}: expected task_specific_params to hold an object per task, found {by_task!r:.80}"
        )
    return dict(found)


def read_mask_token(tokenizer: Tokenizer, where: Path) -> dict[str, Any]:
    """Return the `FillMask` settings `mask_token` and `mask_token_id` of a vocabulary.

    Raises:
        CheckpointError: the vocabulary has no mask token. `where` names it in the message.
    """
    if found := find_special_token(tokenizer, MASK_TOKENS):
        return {"mask_token": found[0], "mask_token_id": found[1]}
    raise CheckpointError(f"{where}: the vocabulary has neither of the mask tokens {', '.join(MASK_TOKENS)}")


def read_labels(values: Mapping[str, Any]) -> list[str] | None:
    """Return the labels in `id2label` ordered by id, or `None` if it is missing or malformed."""
    names = values.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        return None
    if not all(isinstance(label, str | int | float) for label in names.values()):
        return None
    return [str(names[str(i)]) for i in range(len(names))]


def _labels(name: str, values: Mapping[str, Any], where: Path) -> list[str]:
    labels = read_labels(values)
    if labels is None:
        raise CheckpointError(
            f"{where}: expected 'id2label' with names at '0', '1', …, found {values.get('id2label')!r:.80}; a model "
            f"without a {name} head is fine-tuned first: bert-export train --task {name}"
        )
    return labels


def task_config_json(task: Task) -> dict[str, Any]:
    """Return the keys of `config.json` that describe `task`; the inverse of `read_task`."""
    settings = task.to_dict()
    # Stored elsewhere: transitions with the weights, mask tokens with the tokenizer, pooling in the files of
    # sentence-transformers, sizes of the vocabulary and the encoder in keys of their own.
    for key in ("name", "transitions", "mask_token", "mask_token_id", "vocab_size", "hidden_size", "num_layers"):
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
    if isinstance(task, Reranking):
        settings = {"long_documents": task.long_documents}
        values |= {"id2label": {"0": _RELEVANCE_LABEL}, "label2id": {_RELEVANCE_LABEL: 0}}
    if settings:
        values["task_specific_params"] = {task.name: settings}
    return values
