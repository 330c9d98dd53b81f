"""Checkpoints in the Hugging Face layout: opening, loading into a model, saving so that `transformers` loads them."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from bert_models.config import EncoderConfig
from bert_models.errors import CheckpointError
from bert_models.families import FAMILIES, Family
from bert_models.files import read_json, write_json
from bert_models.hub import local_checkpoint
from bert_models.model import TaskModel
from bert_models.sentence_transformers import (
    is_sentence_transformers_folder,
    module_folders,
    read_max_tokens,
    read_sentence_embedding,
    write_sentence_embedding,
)
from bert_models.task_settings import read_mask_token, read_task, read_task_params, task_config_json
from bert_models.tokenizer_files import TOKENIZER_FILES, read_tokenizer, wordpiece_settings
from bert_models.weights import load_weights, read_weights, save_weights, weight_files
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.tasks import TASKS, FillMask, SentenceEmbedding, Task, WindowedText
from bert_runtime.tokenization import TextTokenizer

__all__ = ["Checkpoint", "load_model", "open_checkpoint", "save_model"]


_DEFAULT_LABELS = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
"""The labels of a trained head whose config.json names none: transformers leaves out what is its default."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose configuration has been read and checked, but not its weights."""

    path: Path
    family: Family
    config: EncoderConfig
    config_json: Mapping[str, Any]
    """`config.json` as it stands."""
    name: str
    """What it was asked for as: the folder, or the hub id."""
    revision: str | None
    """The hub's commit that `path` holds; `None` for a folder that was named itself."""

    def task(self, name: str | None = None) -> Task:
        """The task its head was trained for, or the one named; raises `CheckpointError` if there is no telling."""
        name = name or self._own_task()
        if name not in TASKS:
            raise CheckpointError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
        self.require_head(name)
        if name == SentenceEmbedding.name:
            known = is_sentence_transformers_folder(self.path)
            width = self.config.hidden_size
            whole = read_sentence_embedding(self.path, width) if known else SentenceEmbedding(dimensions=width)
            fewer = read_task_params(name, self.config_json, self.path / "config.json").get(
                "dimensions", whole.dimensions
            )
            return replace(whole, dimensions=min(fewer, whole.dimensions))
        where = self.path / "config.json"
        if name == FillMask.name:
            if self.config_json.get("tie_word_embeddings") is False:
                raise CheckpointError(
                    f"{where}: expected tie_word_embeddings to be true, found false: a fill-mask head with an output "
                    "matrix of its own is not supported"
                )
            return read_task(name, self.config_json, where, **read_mask_token(self.tokenizer(), self.path))
        values = {**_DEFAULT_LABELS, **self.config_json} if self.was_trained_for(name) else self.config_json
        return read_task(name, values, where)

    def require_head(self, name: str) -> None:
        """Raises `CheckpointError` for a task that the family has no head for."""
        if name not in self.family.head_weights:
            supported = ", ".join(task for task in TASKS if task in self.family.head_weights)
            raise CheckpointError(f"{self.family.name} has no head for {name!r}; it has heads for {supported}")

    def was_trained_for(self, name: str) -> bool:
        """Whether `config.json` names the architecture of a task's head."""
        return self.family.architectures[name] in (self.config_json.get("architectures") or [])

    def _own_task(self) -> str:
        if is_sentence_transformers_folder(self.path):
            return SentenceEmbedding.name
        architectures = self.config_json.get("architectures") or []
        for name, architecture in self.family.architectures.items():
            if architecture in architectures and architecture != self.family.base_architecture:
                return name
        raise CheckpointError(
            f"{self.path}: config.json names the architecture {', '.join(architectures) or 'none'}, which does not say "
            f"what the model is for; choose one with --task ({', '.join(TASKS)})"
        )

    @property
    def max_tokens(self) -> int:
        """Longest sequence that the positions, the tokenizer's own limit and a sentence-transformers folder allow."""
        limits = [self.config.max_tokens, read_max_tokens(self.path)]
        path = self.path / "tokenizer_config.json"
        limits.append(read_json(path).get("model_max_length") if path.is_file() else None)
        return min(limit for limit in limits if isinstance(limit, int))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer as its files have it; raises `CheckpointError` where it has more tokens than the model."""
        tokenizer = read_tokenizer(self.path, self.family.name)
        if (found := tokenizer.get_vocab_size(with_added_tokens=True)) > self.config.vocab_size:
            raise CheckpointError(
                f"{self.path}: the tokenizer has {found} tokens and the model only {self.config.vocab_size}; "
                "they do not belong together"
            )
        return tokenizer

    def text_tokenizer(self, max_tokens: int | None = None, windows: WindowedText | None = None) -> TextTokenizer:
        """The tokenizer as the runtime uses it, reading `max_tokens` at once, by default the most the model can."""
        if max_tokens is not None and not 3 <= max_tokens <= self.config.max_tokens:
            raise CheckpointError(
                f"expected a maximum length of 3 to {self.config.max_tokens} tokens, found {max_tokens}"
            )
        tokenizer, path = self.tokenizer(), self.path / "tokenizer_config.json"
        side = read_json(path).get("truncation_side") if path.is_file() else None
        if side is not None:
            if side not in ("left", "right"):
                raise CheckpointError(f"{path}: expected a truncation_side of left or right, found {side!r}")
            tokenizer.enable_truncation(max_tokens or self.max_tokens, direction=side)
        return TextTokenizer(tokenizer, max_tokens or self.max_tokens, self.config.pad_token_id, windows)

    def sha256(self) -> str:
        """One hash over the weight files."""
        folders = (self.path, *module_folders(self.path).values())
        hashes = [sha256_file(path) for folder in folders for path in weight_files(folder)]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Reads the configuration of a folder or a hub id; raises `CheckpointError` or `ConfigError` for what is wrong."""
    path = local_checkpoint(name)
    revision = None if path == Path(name) else path.name
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise CheckpointError(f"{path}: expected a checkpoint (a directory with config.json), found {found}")
    values = read_json(path / "config.json")
    family = values.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{path / 'config.json'}: expected a model_type of {', '.join(FAMILIES)}, found {family!r}"
        )
    weight_files(path)
    config = FAMILIES[family].parse_config(values, str(path / "config.json"))
    return Checkpoint(path, FAMILIES[family], config, values, str(name), revision)


def load_model(checkpoint: Checkpoint, task: Task, *, new_head: bool = False) -> TaskModel:
    """The checkpoint's weights in a float32 model in evaluation mode.

    With `new_head`, the head's parameters may be missing or belong to another set of labels; those are then newly
    initialised, as at the start of fine-tuning. Raises `CheckpointError` where the weights do not fit.
    """
    model = TaskModel(checkpoint.config, task)
    family, tensors = checkpoint.family, read_weights(checkpoint.path)
    if isinstance(task, SentenceEmbedding):
        for module, folder in module_folders(checkpoint.path).items():
            if module != "pooling.score" or task.pooling == "attention":
                tensors |= {key.replace("linear", module): tensor for key, tensor in read_weights(folder).items()}
    if isinstance(task, FillMask):
        _check_tied(checkpoint, tensors)
    keys = {name: family.checkpoint_key(name, task.name) for name, _ in model.named_parameters()}
    head = [name for name in keys if name.startswith("head.")] if new_head else []
    labels = task_config_json(task).get("id2label")
    if new_head and labels is not None and labels != checkpoint.config_json.get("id2label"):
        last = {keys[name] for name in head if name.startswith(("head.output.", "head.crf."))}
        tensors = {key: tensor for key, tensor in tensors.items() if key not in last}
    load_weights(
        model, tensors, keys,
        prefix=family.prefix, ignored=family.ignored_weights, where=checkpoint.path, optional=head,
    )  # fmt: skip
    return model.eval()


def _check_tied(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
    """Raises `CheckpointError` where a masked-language head has an output matrix or bias of its own."""
    family = checkpoint.family
    bias = family.head_weights[FillMask.name]["bias"]
    embedding = f"{family.encoder_weights['embeddings.token']}.weight"
    pairs = [(key, name) for key in family.output_matrices for name in (family.prefix + embedding, embedding)]
    pairs += [(key.replace(".weight", ".bias"), bias) for key in family.output_matrices]
    for key, name in pairs:
        if key in tensors and name in tensors and not torch.equal(tensors[key], tensors[name]):
            raise CheckpointError(
                f"{checkpoint.path}: {key} differs from {name}: a fill-mask head with an output matrix or bias of its "
                "own is not supported"
            )


def save_model(
    model: TaskModel,
    folder: Path,
    *,
    tokenizer_from: Path,
    max_tokens: int | None = None,
    extra_heads: Mapping[str, nn.Module] | None = None,
) -> None:
    """Writes config, weights and the tokenizer files of `tokenizer_from` into the existing `folder`.

    `transformers` loads the result with the class that `architectures` names; a sentence-embedding model is also a
    sentence-transformers folder. `max_tokens` is the length it was trained at, so that it is truncated there too.
    `extra_heads` are those of other tasks that were pre-trained beside it; the class is then that of pre-training.
    """
    task, family = model.task, FAMILIES[model.config.family]
    architecture = family.pretraining_architecture if extra_heads else family.architectures[task.name]
    values = {
        "architectures": [architecture],
        **family.dump_config(model.config),
        **task_config_json(task),
        "dtype": "float32",
    }
    tensors = {family.checkpoint_key(name, task.name): p.detach().contiguous() for name, p in model.named_parameters()}
    for name, head in (extra_heads or {}).items():
        weights = ((family.checkpoint_key(f"head.{key}", name), p) for key, p in head.named_parameters())
        tensors |= {key: p.detach().contiguous() for key, p in weights}
    if architecture == family.base_architecture:
        tensors = {key.removeprefix(family.prefix): tensor for key, tensor in tensors.items()}
    for name in TOKENIZER_FILES:
        if (tokenizer_from / name).is_file() and tokenizer_from != folder:
            shutil.copyfile(tokenizer_from / name, folder / name)
    if not (folder / "tokenizer.json").is_file():
        read_tokenizer(tokenizer_from, family.name).save(str(folder / "tokenizer.json"))
    settings = wordpiece_settings(read_json(folder / "tokenizer.json"))
    if (folder / "tokenizer_config.json").is_file():
        settings = read_json(folder / "tokenizer_config.json")
    if max_tokens is not None:
        settings["model_max_length"] = max_tokens
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
    if isinstance(task, SentenceEmbedding):
        write_sentence_embedding(folder, task, model.config.hidden_size)
        for module, path in module_folders(folder).items():
            names = {name: f"{module}.{name}" for name in ("weight", "bias")}
            save_weights({f"linear.{name}": tensors.pop(key) for name, key in names.items()}, path)
    write_json(folder / "config.json", values)
    save_weights(tensors, folder)
