"""Embeddings of many texts as one array, without an object for each."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from bert_runtime.batching.streaming import CHUNK_SIZE
from bert_runtime.errors import InputError
from bert_runtime.inputs import Column, SingleInput, check_column
from bert_runtime.numerics import Float32Array, FloatArray
from bert_runtime.tasks import SentenceEmbedding, Task

__all__ = ["VectorShape", "encode_texts"]

_PROGRESS_S = 0.2
"""Seconds between two lines of progress, so that a terminal costs nothing."""


class VectorShape(NamedTuple):
    """Size and length of the vectors that `Model.encode` returns."""

    dimensions: int
    """How many of the graph's first dimensions are kept."""
    normalize: bool
    """Whether the kept dimensions are L2-normalized; the graph may have normalized all of them before."""

    @classmethod
    def of(cls, task: Task, normalize: bool | None, dimensions: int | None) -> Self:
        """Return the shape that options ask for, by default that of the task.

        Raises:
            InputError: the task gives no vectors, or not such ones.
        """
        if not isinstance(task, SentenceEmbedding):
            raise InputError(f"encode needs a model for sentence-embedding, found one for {task.name}; call the model")
        dimensions = task.dimensions if dimensions is None else dimensions
        if not isinstance(dimensions, int) or not 1 <= dimensions <= task.dimensions:
            raise InputError(f"dimensions must lie in 1 to {task.dimensions}, found {dimensions!r}")
        if normalize is False and task.normalize:
            raise InputError("normalize=False is not possible: the graph of this bundle normalizes its vectors")
        changed = dimensions < task.dimensions if task.normalize else normalize is True
        return cls(dimensions, changed)

    def apply(self, vectors: FloatArray) -> Float32Array:
        """Return a graph's vectors in this shape: [N, at least `dimensions`] → float32 [N, dimensions], a copy."""
        shaped = np.array(vectors[:, : self.dimensions], dtype=np.float32, order="C")
        if self.normalize:
            _normalize(shaped)
        return shaped


def _normalize(vectors: Float32Array) -> None:
    """Divide vectors [N, H] by their L2 norms, in place; a vector of zeros stays one."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(norms, np.finfo(np.float32).tiny)


def encode_texts(
    texts: Sequence[SingleInput] | Column,
    shape: VectorShape,
    vectors_of: Callable[[Sequence[SingleInput], int], FloatArray],
    *,
    show_progress: bool = False,
) -> Float32Array:
    """Return the embeddings of texts, float32 [N, dimensions].

    Args:
        texts: N texts.
        shape: what the vectors look like.
        vectors_of: computes the vectors of some texts, of which the first has the number given.
        show_progress: whether to count the texts on stderr.

    Raises:
        InputError: a text cannot be processed, or `texts` is one text or an iterator.
    """
    if isinstance(texts, str | tuple | Mapping):
        raise InputError(f"expected a list of texts, found {type(texts).__name__}; put one text into a list")
    check_column(texts)
    vectors = np.empty((len(texts), shape.dimensions), dtype=np.float32)
    iterator, shown = iter(texts), time.monotonic()
    for first in range(0, len(vectors), CHUNK_SIZE):
        chunk = list(islice(iterator, CHUNK_SIZE))
        vectors[first : first + CHUNK_SIZE] = vectors_of(chunk, first)[:, : shape.dimensions]
        done = first + len(chunk)
        if show_progress and (done == len(vectors) or time.monotonic() > shown + _PROGRESS_S):
            end = "\n" if done == len(vectors) else ""
            sys.stderr.write(f"\rencoding: {done:,} of {len(vectors):,} texts{end}")
            sys.stderr.flush()
            shown = time.monotonic()
    if shape.normalize:
        _normalize(vectors)
    return vectors
