"""Save models as checkpoints in the Hugging Face layout, which `transformers` can load."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from bert_models.cross_encoders import relevance_module_folders, write_reranking
from bert_models.families import FAMILIES, Family
from bert_models.files import read_json, write_json
from bert_models.model import TaskModel
from bert_models.sentence_transformers import module_folders, write_sentence_embedding
from bert_models.sparse_encoders import write_sparse_embedding
from bert_models.task_settings import task_config_json
from bert_models.tokenizer_files import TOKENIZER_FILES, read_tokenizer, wordpiece_settings
from bert_models.weights import join_parts, save_weights
from bert_runtime.tasks import Reranking, SentenceEmbedding, SparseEmbedding

__all__ = ["save_model"]


def save_model(
    model: TaskModel,
    folder: Path,
    *,
    tokenizer_from: Path,
    max_tokens: int | None = None,
    extra_heads: Mapping[str, nn.Module] | None = None,
) -> None:
    """Save a model with its tokenizer as a checkpoint that `transformers` can load.

    The class to load it with is in `architectures`. A sentence-embedding model is also saved as a
    sentence-transformers folder, and a sparse-embedding model as one of its `SparseEncoder`.

    Args:
        model: the model to save, in float32.
        folder: an existing folder to write into.
        tokenizer_from: the folder to copy tokenizer files from.
        max_tokens: sequence length the model was trained with, at which its tokenizer truncates.
        extra_heads: by task, heads that were pre-trained together with the model's own; the class is then the family's
            `pretraining_architecture`.

    Raises:
        CheckpointError: `tokenizer_from` has no tokenizer, or a damaged one.
    """
    task, family = model.task, FAMILIES[model.config.family]
    architecture = family.pretraining_architecture if extra_heads else family.architectures[task.name]
    if isinstance(task, Reranking) and task.pooling is not None:
        architecture = family.base_architecture
    config_json = {
        "architectures": [architecture],
        **family.dump_config(model.config),
        **task_config_json(task),
        "dtype": "float32",
    }
    tensors = _named_tensors(model, family, extra_heads or {})
    if architecture == family.base_architecture:
        tensors = {key.removeprefix(family.prefix): tensor for key, tensor in tensors.items()}
    _save_tokenizer(folder, tokenizer_from, family.name, max_tokens)
    if isinstance(task, SentenceEmbedding):
        write_sentence_embedding(folder, task, model.config.hidden_size)
        _save_modules(tensors, module_folders(folder))
    if isinstance(task, SparseEmbedding):
        write_sparse_embedding(folder, task)
    if isinstance(task, Reranking):
        config_json |= write_reranking(folder, task, model.config.hidden_size)
        _save_modules(tensors, relevance_module_folders(folder))
    write_json(folder / "config.json", config_json)
    save_weights(tensors, folder)


def _save_modules(tensors: dict[str, Tensor], folders: Mapping[str, Path]) -> None:
    """Move the weights of modules from `tensors` into folders, given by the modules' names."""
    for module, path in folders.items():
        kind = "norm" if module.endswith(".norm") else "linear"
        save_weights({f"{kind}.{name}": tensors.pop(f"{module}.{name}") for name in ("weight", "bias")}, path)


def _named_tensors(model: TaskModel, family: Family, extra_heads: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the parameters of the model and of `extra_heads` by their names in a checkpoint."""
    named = [(family.checkpoint_key(name, model.task.name), p) for name, p in model.named_parameters()]
    for task, head in extra_heads.items():
        named += [(family.checkpoint_key(f"head.{name}", task), p) for name, p in head.named_parameters()]
    return join_parts({key: parameter.detach().contiguous() for key, parameter in named})


def _save_tokenizer(folder: Path, source: Path, family: str, max_tokens: int | None) -> None:
    """Copy the tokenizer files of `source`, and add `tokenizer.json` and the settings that `transformers` needs."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and source != folder:
            shutil.copyfile(source / name, folder / name)
    if not (folder / "tokenizer.json").is_file():
        read_tokenizer(source, family).save(str(folder / "tokenizer.json"))
    if (folder / "tokenizer_config.json").is_file():
        settings = read_json(folder / "tokenizer_config.json")
    else:
        settings = wordpiece_settings(read_json(folder / "tokenizer.json"))
    if max_tokens is not None:
        settings["model_max_length"] = max_tokens
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
