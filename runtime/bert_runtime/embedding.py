"""Embeddings of many texts as one array, without an object for each."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import numpy as np

from bert_runtime.batching.batch_runner import check_max_batch_tokens
from bert_runtime.batching.streaming import CHUNK_SIZE
from bert_runtime.bundle.manifest import UNMASKED, Variant
from bert_runtime.errors import InputError
from bert_runtime.inputs import Column, SingleInput, check_column
from bert_runtime.numerics import FloatArray
from bert_runtime.similarity import normalized
from bert_runtime.tasks import SentenceEmbedding, Task
from bert_runtime.vector_quantization import EmbeddingPrecision, Vectors, embedding_dtype, embedding_width

__all__ = ["TextEncoding", "VectorShape", "encode_texts"]

_PROGRESS_S = 0.2
"""Seconds between two lines of progress, so that a terminal costs nothing."""


@dataclass(frozen=True)
class VectorShape:
    """Size, length and number format of the vectors that `Model.encode` returns."""

    task: SentenceEmbedding
    """The task with the options asked for."""
    normalize: bool
    """Whether vectors are L2-normalized that the graph does not normalize."""

    @classmethod
    def of(
        cls,
        task: Task,
        normalize: bool | None = None,
        ranges: FloatArray | Sequence[Sequence[float]] | None = None,
        **options: Any,
    ) -> Self:
        """Return the shape that options ask for, by default that of the task.

        Args:
            task: the model's task.
            normalize: see `Model.encode`.
            ranges: see `Model.encode`.
            options: `SentenceEmbedding.options`; `None` stands for the task's own.

        Raises:
            InputError: the task gives no vectors, or not such ones, or `normalize` is of the wrong type.
        """
        if not isinstance(task, SentenceEmbedding):
            raise InputError(f"encode needs a model for sentence-embedding, found one for {task.name}; call the model")
        if not isinstance(normalize, bool | None):
            raise InputError(f"normalize must be true or false, found {normalize!r:.50}")
        if normalize is False and task.normalize:
            raise InputError("normalize=False is not possible: the graph of this bundle normalizes its vectors")
        given = {name: value for name, value in options.items() if value is not None}
        normalizes = normalize is True and not task.normalize
        if ranges is not None:
            given = {"embedding_precision": task.embedding_precision, **given}
            dimensions = given.pop("dimensions", task.dimensions)
            # In float32 first: other precisions are refused while there are no ranges of these dimensions.
            task = _with_ranges(task.with_options(dimensions=dimensions, embedding_precision="float32"), ranges)
        shaped = task.with_options(**given)
        if normalizes and ranges is None and shaped.embedding_precision.endswith("int8"):
            raise InputError(
                "the bundle's ranges are those of vectors that are not normalized; give model.encode the ranges of "
                "normalized ones, or export a bundle that normalizes"
            )
        return cls(shaped, normalizes)

    @property
    def width(self) -> int:
        """Number of array elements of a vector."""
        return embedding_width(self.task.embedding_precision, self.task.dimensions)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The vectors' dtype."""
        return embedding_dtype(self.task.embedding_precision)

    def apply(self, computed: FloatArray) -> Vectors:
        """Return a graph's vectors in this shape: [N, at least `task.dimensions`] → [N, width]."""
        if self.normalize:
            computed = normalized(computed[:, : self.task.dimensions])
        return np.ascontiguousarray(self.task.vectors(computed))


def _with_ranges(task: SentenceEmbedding, ranges: FloatArray | Sequence[Sequence[float]]) -> SentenceEmbedding:
    try:
        values = np.asarray(ranges, dtype=np.float32).reshape(len(ranges), -1)
        return replace(task, ranges=tuple(map(tuple, values.tolist())))
    except (TypeError, ValueError) as error:
        raise InputError(f"ranges: {error}") from None


def encode_texts(
    texts: Sequence[SingleInput] | Column,
    shape: VectorShape,
    vectors_of: Callable[[Sequence[SingleInput], int], FloatArray],
    *,
    show_progress: bool = False,
) -> Vectors:
    """Return the embeddings of texts [N, width].

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
    vectors = np.empty((len(texts), shape.width), dtype=shape.dtype)
    iterator, shown = iter(texts), time.monotonic()
    for first in range(0, len(vectors), CHUNK_SIZE):
        chunk = list(islice(iterator, CHUNK_SIZE))
        vectors[first : first + CHUNK_SIZE] = shape.apply(vectors_of(chunk, first))
        done = first + len(chunk)
        if show_progress and (done == len(vectors) or time.monotonic() > shown + _PROGRESS_S):
            end = "\n" if done == len(vectors) else ""
            sys.stderr.write(f"\rencoding: {done:,} of {len(vectors):,} texts{end}")
            sys.stderr.flush()
            shown = time.monotonic()
    return vectors


class TextEncoding(ABC):
    """The method `encode` of models; `bert_runtime.Model` has it."""

    task: Task
    max_batch_tokens: int
    whole_batch_tokens: int
    variant: Variant | None

    @abstractmethod
    def _vectors(self, inputs: Sequence[SingleInput], first: int) -> FloatArray:
        """Return the raw outputs of N inputs, of which the first has the number given: [N, …]."""

    def encode(
        self,
        texts: Sequence[SingleInput] | Column,
        *,
        max_batch_tokens: int | None = None,
        show_progress: bool = False,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        precision: EmbeddingPrecision | None = None,
        ranges: FloatArray | None = None,
    ) -> Vectors:
        """Return the embeddings of texts as one array, without a `Result` for each.

        Args:
            texts: N texts, as in `__call__`.
            max_batch_tokens: padded tokens per batch; by default those of the model.
            show_progress: whether to count the texts on stderr.
            normalize: whether vectors have length 1; by default as the bundle says, whose graph may have normalized
                them already.
            dimensions: number of first dimensions to keep, before normalization (Matryoshka models).
            prompt_name: which of the bundle's prompts is put in front of each text; by default the bundle's.
            prompt: what is put in front of each text instead; "" for nothing.
            precision: number format of the vectors, see `EmbeddingPrecision`.
            ranges: smallest and largest value of each dimension [2, dimensions], by which `int8` and `uint8` vectors
                are quantized, see `embedding_ranges`; by default the bundle's.

        Returns:
            The vectors that `__call__` gives one by one: float32 [N, dimensions], or as `precision` says.

        Raises:
            InputError: the task is not sentence-embedding, an option is out of range, or as in `__call__`.
        """
        model = copy(self)
        if max_batch_tokens is not None:
            check_max_batch_tokens(max_batch_tokens)
            if self.variant is None or self.variant.padding != UNMASKED:  # which reads each text alone
                model.max_batch_tokens, model.whole_batch_tokens = max_batch_tokens, 0
        options = {"dimensions": dimensions, "prompt_name": prompt_name, "prompt": prompt}
        shape = VectorShape.of(self.task, normalize, ranges, embedding_precision=precision, **options)
        model.task = shape.task
        return encode_texts(texts, shape, model._vectors, show_progress=show_progress)
