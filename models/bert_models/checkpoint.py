"""Checkpoints in the Hugging Face layout: open them and load their weights. `bert_models.saving` writes them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from bert_models.canonical_weights import read_canonical_weights
from bert_models.checkpoint_folder import check_folder
from bert_models.config import EncoderConfig
from bert_models.cross_encoders import (
    cross_encoder_task,
    is_cross_encoder,
    num_labels,
    read_reranking,
    relevance_module_folders,
)
from bert_models.errors import CheckpointError
from bert_models.families import MODEL_TYPES, Family
from bert_models.families.nearest import describe_unsupported
from bert_models.files import read_json
from bert_models.head_tensors import check_tied, check_tied_setting, has_other_labels, module_tensors
from bert_models.hub import local_checkpoint
from bert_models.model import TaskModel
from bert_models.sentence_transformers import (
    is_sentence_transformers_folder,
    module_folders,
    read_max_tokens,
    read_sentence_embedding,
)
from bert_models.sparse_encoders import is_sparse_encoder_folder, read_sparse_embedding
from bert_models.task_settings import (
    default_labels,
    read_dimensions,
    read_feature_extraction,
    read_mask_token,
    read_task,
    read_task_params,
)
from bert_models.tokenizer_files import read_model_max_length, read_tokenizer, read_truncation_side
from bert_models.trained_heads import (
    check_architecture,
    check_architectures,
    check_head_weights,
    check_label_count,
    named_tasks,
)
from bert_models.unread_layers import drop_unread_layers
from bert_models.weights import check_weights, load_weights, split_parts, weight_files
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.tasks import (
    TASKS,
    FeatureExtraction,
    FillMask,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    WindowedText,
)
from bert_runtime.tokenization import TextTokenizer

__all__ = ["Checkpoint", "load_model", "open_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose configuration has been read and validated, but not its weights."""

    path: Path
    """The folder that holds it."""
    family: Family
    config: EncoderConfig
    config_json: Mapping[str, Any]
    """The contents of `config.json`, with the keys of transformers."""
    name: str
    """The name it was opened by: a folder or a hub id."""
    revision: str | None
    """Commit on the hub that `path` holds; `None` if the checkpoint was opened by its folder."""

    def task(self, name: str | None = None) -> Task:
        """Return the task with the settings that the checkpoint's files give it.

        Args:
            name: a key of `bert_runtime.tasks.TASKS`; by default the task that the head was trained for.

        Raises:
            CheckpointError: the default is unknown, the family has no such head, or settings are missing or invalid.
        """
        name = name or self._default_task()
        if name not in TASKS:
            raise CheckpointError(f"unknown task {name!r}; expected one of {', '.join(TASKS)}")
        self.require_head(name)
        if name == SentenceEmbedding.name:
            return self._sentence_embedding()
        where = self.path / "config.json"
        if name in (FillMask.name, SparseEmbedding.name):
            check_tied_setting(self.config_json, name, where)
        if name == SparseEmbedding.name:
            if is_sparse_encoder_folder(self.path):
                return read_sparse_embedding(self.path, self.config.vocab_size)
            return read_task(name, self.config_json, where, vocab_size=self.config.vocab_size)
        if name == FeatureExtraction.name:
            return read_feature_extraction(self.config, self.config_json, where)
        if name == Reranking.name:
            return read_reranking(self.path, self.config_json, read_task_params(name, self.config_json, where))
        if name == FillMask.name:
            return read_task(name, self.config_json, where, **read_mask_token(self.tokenizer(), self.path))
        defaults = default_labels(self.config_json) if self.was_trained_for(name) else {}
        return read_task(name, {**defaults, **self.config_json}, where)

    def _sentence_embedding(self) -> SentenceEmbedding:
        """Return the task with the pooling of a sentence-transformers folder, and truncated `dimensions` if set."""
        hidden_size = self.config.hidden_size
        task = SentenceEmbedding(dimensions=hidden_size)
        if is_sentence_transformers_folder(self.path) and not self.is_cross_encoder:
            task = read_sentence_embedding(self.path, hidden_size)
        dimensions = read_dimensions(self.config_json, self.path / "config.json", task.dimensions)
        return replace(task, dimensions=min(dimensions, task.dimensions))

    def require_head(self, name: str) -> None:
        """Raise `CheckpointError` if the family has no head for the task `name`."""
        if name not in self.family.head_weights:
            supported = ", ".join(task for task in TASKS if task in self.family.head_weights)
            raise CheckpointError(f"{self.family.name} has no head for {name!r}; it has heads for {supported}")

    def check_trained_head(self, name: str) -> None:
        """Raise `CheckpointError` if `config.json` names another head, whose weights pass for those of `name`."""
        self.require_head(name)
        check_architecture(self.family, self.config_json, name, self.path)

    def was_trained_for(self, name: str) -> bool:
        """Return whether `config.json` names the architecture with the head of the task `name`."""
        return self.family.architectures[name] in (self.config_json.get("architectures") or [])

    @property
    def is_cross_encoder(self) -> bool:
        """Whether sentence-transformers' `CrossEncoder` has saved it."""
        return is_cross_encoder(self.path, self.config_json)

    def has_relevance_head(self) -> bool:
        """Return whether it has a trained head for reranking: of a `CrossEncoder`, or a classifier of one label."""
        if self.is_cross_encoder:
            return cross_encoder_task(self.path, self.config_json) == Reranking.name
        return self.was_trained_for(Reranking.name) and num_labels(self.config_json) == 1

    def head_folders(self) -> dict[str, Path]:
        """Return the folders with further weights of the head, by the names of their modules in ours."""
        return relevance_module_folders(self.path) if self.is_cross_encoder else module_folders(self.path)

    def _default_task(self) -> str:
        """Return the task that the architecture or a sentence-transformers folder implies."""
        if is_sparse_encoder_folder(self.path):
            return SparseEmbedding.name
        if self.is_cross_encoder:
            return cross_encoder_task(self.path, self.config_json)
        if is_sentence_transformers_folder(self.path):
            return SentenceEmbedding.name
        architectures = self.config_json.get("architectures") or []
        for name, architecture in self.family.architectures.items():
            if architecture in architectures and architecture != self.family.base_architecture:
                return name
        named_tasks(self.family, self.config_json, self.path)  # refuses heads that no task has
        raise CheckpointError(
            f"{self.path}: config.json names the architecture {', '.join(architectures) or 'none'}, which does not say "
            f"what the model is for; choose one with --task ({', '.join(TASKS)})"
        )

    @property
    def max_tokens(self) -> int:
        """Maximum sequence length in tokens.

        It is the `max_seq_length` of a sentence-transformers folder, or else the tokenizer's `model_max_length`, as in
        sentence-transformers; at most what the position embeddings allow.

        Raises:
            CheckpointError: one of them is no positive number.
        """
        limit = read_model_max_length(self.path) or self.config.max_tokens
        if (length := read_max_tokens(self.path)) and is_sentence_transformers_folder(self.path):
            limit = length
        return int(min(limit, self.config.max_tokens))  # "no limit" is written as 1e30

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer.

        Raises:
            CheckpointError: its files are missing or damaged, or it has more tokens than the model.
            MissingExtraError: it is a SentencePiece model and sentencepiece is not installed.
        """
        tokenizer = read_tokenizer(self.path, self.family.name)
        if (found := tokenizer.get_vocab_size(with_added_tokens=True)) > self.config.vocab_size:
            raise CheckpointError(
                f"{self.path}: the tokenizer has {found} tokens and the model only {self.config.vocab_size}; "
                "they do not belong together"
            )
        return tokenizer

    def text_tokenizer(self, max_tokens: int | None = None, windows: WindowedText | None = None) -> TextTokenizer:
        """Return the tokenizer with truncation and windows, as the runtime uses it.

        Args:
            max_tokens: maximum sequence length in tokens, 3 to `config.max_tokens`; by default `self.max_tokens`.
            windows: how long texts are split into windows, if they are.

        Raises:
            CheckpointError: `max_tokens` or the tokenizer's `truncation_side` is invalid, or see `tokenizer`.
        """
        if max_tokens is not None and not 3 <= max_tokens <= self.config.max_tokens:
            raise CheckpointError(
                f"expected a maximum length of 3 to {self.config.max_tokens} tokens, found {max_tokens}"
            )
        longest = self.max_tokens  # in any case: it refuses settings that the tokenizer does not follow
        max_tokens = max_tokens or longest
        tokenizer = self.tokenizer()
        if (side := read_truncation_side(self.path)) is not None:
            tokenizer.enable_truncation(max_tokens, direction=side)
        return TextTokenizer(tokenizer, max_tokens, self.config.pad_token_id, windows)

    def sha256(self) -> str:
        """Return the SHA-256 of the weight file, or of the concatenated hashes if there are several, in hexadecimal."""
        folders = (self.path, *self.head_folders().values())
        hashes = [sha256_file(path) for folder in folders for path in weight_files(folder)]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Open a checkpoint: read and validate its configuration, not its weights.

    Args:
        name: a folder, or a hub id `org/name` with an optional `@revision`, which is downloaded if it is not cached.

    Raises:
        CheckpointError: there is no such checkpoint, or it is incomplete or of an unknown family.
        ConfigError: its options are invalid or not supported.
        MissingExtraError: `name` is a hub id and huggingface_hub is not installed.
    """
    path = local_checkpoint(name)
    revision = None if path == Path(name) else path.name
    check_folder(path)
    values = read_json(path / "config.json")
    name_found = values.get("model_type")
    if not isinstance(name_found, str) or name_found not in MODEL_TYPES:
        raise CheckpointError(
            f"{path / 'config.json'}: expected a model_type of {', '.join(MODEL_TYPES)}, found {name_found!r:.80}"
            f"{describe_unsupported(values)}"
        )
    family = MODEL_TYPES[name_found]
    check_architectures(values, path / "config.json")
    weight_files(path)
    values = dict(family.canonical_config(values))
    config = family.parse_config(values, str(path / "config.json"))
    return Checkpoint(path, family, config, values, str(name), revision)


def load_model(checkpoint: Checkpoint, task: Task, *, new_head: bool = False) -> TaskModel:
    """Load the checkpoint's weights into a model for `task`.

    Args:
        checkpoint: where the weights are.
        task: chooses the head, as `checkpoint.task()` returns it.
        new_head: allow head parameters to be missing or to belong to other labels. They are then newly initialised, as
            at the start of fine-tuning.

    Returns:
        A float32 model on the CPU, in evaluation mode, without layers that it does not read, see `drop_unread_layers`.

    Raises:
        CheckpointError: the weights cannot be read or do not fit the model or, without `new_head`, are those of a head
            for another task.
    """
    family = checkpoint.family
    tensors = read_canonical_weights(checkpoint.path, family, checkpoint.config_json)
    if not new_head:
        checkpoint.check_trained_head(task.name)
        if not isinstance(task, Reranking) or task.pooling is None:
            check_head_weights(family, checkpoint.config_json, tensors, task.name, checkpoint.path)
        check_label_count(family, tensors, task, checkpoint.path)
    tensors |= module_tensors(checkpoint, task)
    check_tied(checkpoint, task, tensors)
    with torch.device("meta"):  # shapes alone: a wrong configuration may ask for more memory than there is
        shapes = TaskModel(checkpoint.config, task)
    keys = {name: family.checkpoint_key(name, task.name) for name, _ in shapes.named_parameters()}
    head = [name for name in keys if name.startswith("head.")] if new_head else []
    if new_head and has_other_labels(checkpoint, task):
        per_label = {keys[name] for name in head if name.startswith(("head.output.", "head.crf."))}
        tensors = {key: tensor for key, tensor in tensors.items() if key not in per_label}
    matched = check_weights(
        shapes, split_parts(tensors, keys.values(), family.prefix), keys,
        prefix=family.prefix, ignored=family.ignored_weights, where=checkpoint.path, optional=head,
    )  # fmt: skip
    model = TaskModel(checkpoint.config, task)
    load_weights(model, matched)
    drop_unread_layers(model)
    return model.eval()
