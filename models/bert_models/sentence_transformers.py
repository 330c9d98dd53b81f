"""What a sentence-transformers folder says about pooling, normalisation and length.

Such a folder is a checkpoint with `modules.json` (the pipeline), `1_Pooling/config.json` (how to pool) and
`sentence_bert_config.json` (`max_seq_length`). A `Normalize` module has no settings, so its folder may be absent.
"""

from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError
from bert_models.files import read_json, write_json
from bert_runtime.tasks import SentenceEmbedding

__all__ = ["is_sentence_transformers_folder", "read_max_tokens", "read_sentence_embedding", "write_sentence_embedding"]

_POOLING_KEYS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def is_sentence_transformers_folder(folder: Path) -> bool:
    """Whether `folder` describes a sentence-transformers pipeline."""
    return (folder / "modules.json").is_file()


def read_max_tokens(folder: Path) -> int | None:
    """`max_seq_length`, or `None` where the folder does not limit it."""
    path = folder / "sentence_bert_config.json"
    value = read_json(path).get("max_seq_length") if path.is_file() else None
    if value is not None and (not isinstance(value, int) or value < 1):
        raise CheckpointError(f"{path}: expected a positive max_seq_length, found {value!r}")
    return value


def read_sentence_embedding(folder: Path, hidden_size: int) -> SentenceEmbedding:
    """Pooling and normalisation as `modules.json` has them; raises `CheckpointError` for what is not supported."""
    path = folder / "modules.json"
    modules = read_json(path, list)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise CheckpointError(
            f"{path}: expected the modules Transformer, Pooling and optionally Normalize, found {', '.join(kinds)}"
        )
    return SentenceEmbedding(
        dimensions=hidden_size,
        pooling=_pooling(folder / str(modules[1].get("path", "1_Pooling")) / "config.json"),
        normalize=kinds[2:] == ["Normalize"],
    )


def _pooling(path: Path) -> str:
    settings: dict[str, Any] = read_json(path)
    modes = sorted(key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True)
    if len(modes) != 1 or modes[0] not in _POOLING_KEYS:
        raise CheckpointError(
            f"{path}: expected exactly one of {', '.join(_POOLING_KEYS)} to be true, found {', '.join(modes) or 'none'}"
        )
    return _POOLING_KEYS[modes[0]]


def write_sentence_embedding(folder: Path, task: SentenceEmbedding) -> None:
    """Writes the files that `read_sentence_embedding` reads, as sentence-transformers has them."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if task.normalize else [])]
    paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    modes = {key: mode == task.pooling for key, mode in _POOLING_KEYS.items()}
    write_json(folder / paths[1] / "config.json", {"word_embedding_dimension": task.dimensions, **modes})
    write_json(folder / "modules.json", modules)
