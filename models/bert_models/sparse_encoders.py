"""Read and write the settings of sentence-transformers' `SparseEncoder` folders with a SPLADE model.

Such a folder is a checkpoint of a masked language model with `modules.json` (a transformer and `SpladePooling`) and
`1_SpladePooling/config.json`.
"""

from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError
from bert_models.files import read_json
from bert_models.sentence_transformers import is_sentence_transformers_folder, module_types, write_modules
from bert_runtime.tasks import SparseEmbedding
from bert_runtime.tasks.sparse_embedding import SPARSE_ACTIVATIONS, SPARSE_POOLINGS

__all__ = ["is_sparse_encoder_folder", "read_sparse_embedding", "write_sparse_embedding"]

_POOLING = "SpladePooling"

_POOLING_FOLDER = f"1_{_POOLING}"

_PACKAGE = "sentence_transformers.sparse_encoder.models"
"""The package that names the modules in folders of all releases: newer ones read the names of older ones."""


def is_sparse_encoder_folder(folder: Path) -> bool:
    """Return whether `folder` describes a pipeline with SPLADE's pooling."""
    return is_sentence_transformers_folder(folder) and _POOLING in module_types(folder)


def read_sparse_embedding(folder: Path, vocab_size: int) -> SparseEmbedding:
    """Read pooling and activation of a `SparseEncoder` folder.

    Args:
        folder: holds `modules.json`.
        vocab_size: size of the model's vocabulary.

    Raises:
        CheckpointError: files are missing or malformed, or a module or setting is not supported.
    """
    kinds = module_types(folder)
    if kinds not in (["MLMTransformer", _POOLING], ["Transformer", _POOLING]):
        raise CheckpointError(
            f"{folder / 'modules.json'}: expected the modules MLMTransformer (or Transformer) and {_POOLING}, found "
            f"{', '.join(kinds):.200}"
        )
    path = folder / _POOLING_FOLDER / "config.json"
    settings: dict[str, Any] = read_json(path)
    pooling, activation = settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
    for key, value, choices in (
        ("pooling_strategy", pooling, SPARSE_POOLINGS),
        ("activation_function", activation, SPARSE_ACTIVATIONS),
    ):
        if value not in choices:
            raise CheckpointError(f"{path}: expected {key} to be {' or '.join(choices)}, found {value!r:.80}")
    return SparseEmbedding(vocab_size=vocab_size, pooling=pooling, activation=activation)


def write_sparse_embedding(folder: Path, task: SparseEmbedding) -> None:
    """Write the settings that `read_sparse_embedding` reads into the existing `folder`."""
    pooling = {
        "pooling_strategy": task.pooling,
        "activation_function": task.activation,
        "word_embedding_dimension": task.vocab_size,
    }
    write_modules(folder, [(f"{_PACKAGE}.MLMTransformer", {}), (f"{_PACKAGE}.{_POOLING}", pooling)])
