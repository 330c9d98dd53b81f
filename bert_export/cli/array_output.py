"""Vectors of `bert-export predict` in a file of NumPy arrays (.npz)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_export.output_files import write_errors
from bert_runtime.bundle.atomic_files import atomic_path
from bert_runtime.errors import DataError
from bert_runtime.tasks import Embedding, FeatureExtraction, Result, SentenceEmbedding, Task, TokenVectors

__all__ = ["check_array_task", "is_array_file", "write_arrays"]

_TASKS = (FeatureExtraction, SentenceEmbedding)
"""Tasks whose results are vectors."""


def is_array_file(path: Path | None) -> bool:
    """Return whether results go to a file of arrays."""
    return path is not None and path.suffix == ".npz"


def check_array_task(path: Path, task: Task) -> None:
    """Raise `DataError` unless the results of a task are vectors, before any of them is computed."""
    if not isinstance(task, _TASKS):
        known = " or ".join(kind.name for kind in _TASKS)
        raise DataError(f"{path}: arrays hold vectors, of a bundle for {known}, found {task.name}; write a .jsonl file")


def write_arrays(path: Path, results: Iterable[Result]) -> int:
    """Write results to a file that replaces `path` once it is complete, and return their number N.

    Token vectors are the arrays `vectors` float32 [T, width], `tokens` [T], `offsets` int64 [T, 2], `word_ids` int64
    [T] and `text_starts` int64 [N + 1]: text i has the tokens from `text_starts[i]` to `text_starts[i + 1]`. Embeddings
    are one array `vectors` [N, dimensions].

    Args:
        path: the file.
        results: the results, which are all held in memory.

    Raises:
        DataError: `path` cannot be written to.
    """
    found = list(results)
    arrays = _token_arrays([result for result in found if isinstance(result, TokenVectors)])
    if any(isinstance(result, Embedding) for result in found):
        arrays = {"vectors": np.stack([result.vector for result in found if isinstance(result, Embedding)])}
    with write_errors(path), atomic_path(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)
    return len(found)


def _token_arrays(results: list[TokenVectors]) -> Mapping[str, Any]:
    """Return the arrays of token vectors of all texts, one text after the other."""
    ends = np.cumsum([0, *(len(result.vectors) for result in results)])
    if not results:
        return {"vectors": np.empty((0, 0), np.float32), "text_starts": ends}
    return {
        "vectors": np.concatenate([result.vectors for result in results]),
        "tokens": np.array([token for result in results for token in result.tokens], dtype=np.str_),
        "offsets": np.concatenate([result.offsets for result in results]),
        "word_ids": np.concatenate([result.word_ids for result in results]),
        "text_starts": ends,
    }
