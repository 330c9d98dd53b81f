"""Embeddings of 8 bits or of 1 bit a dimension, in the same format as sentence-transformers' `quantize_embeddings`."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bert_runtime.errors import InputError
from bert_runtime.numerics import Float32Array, FloatArray

__all__ = [
    "EMBEDDING_PRECISIONS",
    "EmbeddingPrecision",
    "Vectors",
    "check_precision",
    "embedding_dtype",
    "embedding_ranges",
    "embedding_width",
    "quantize_embeddings",
    "unpacked_embeddings",
]

EmbeddingPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""How the numbers of an embedding are stored.

`float32`: as computed. `int8`, `uint8`: one of 256 equal steps of the dimension's range. `binary`, `ubinary`: the signs
of eight dimensions in one signed or unsigned byte, the first dimension in the highest bit.
"""

EMBEDDING_PRECISIONS: tuple[str, ...] = get_args(EmbeddingPrecision)

Vectors = NDArray[Any]
"""Embeddings of any `EmbeddingPrecision`: float32, int8 or uint8 [N, width]."""

_STEPS = 255
_SIGNED_OFFSET = 128


def check_precision(precision: object) -> None:
    """Raise `InputError` unless `precision` is one of `EMBEDDING_PRECISIONS`."""
    if precision not in EMBEDDING_PRECISIONS:
        raise InputError(
            f"expected an embedding precision of {', '.join(EMBEDDING_PRECISIONS)}, found {precision!r:.50}"
        )


def embedding_dtype(precision: str) -> np.dtype[Any]:
    """Return the NumPy dtype of embeddings of a precision."""
    return np.dtype({"float32": "float32", "int8": "int8", "binary": "int8"}.get(precision, "uint8"))


def embedding_width(precision: str, dimensions: int) -> int:
    """Return the number of array elements of an embedding: a byte holds eight dimensions in binary precisions."""
    return -(-dimensions // 8) if precision.endswith("binary") else dimensions


def embedding_ranges(embeddings: FloatArray) -> Float32Array:
    """Return the range of each dimension, for `quantize_embeddings`.

    Args:
        embeddings: embeddings of typical texts, a few hundred or more: [N, dimensions].

    Returns:
        The smallest and the largest value of each dimension: float32 [2, dimensions].

    Raises:
        InputError: there are fewer than two embeddings, which have no range.
    """
    if embeddings.ndim != 2 or len(embeddings) < 2:
        raise InputError(f"expected at least two embeddings [N, dimensions], found {list(embeddings.shape)}")
    return np.stack([embeddings.min(axis=0), embeddings.max(axis=0)]).astype(np.float32)


def quantize_embeddings(
    embeddings: FloatArray, precision: str, ranges: FloatArray | Sequence[Sequence[float]] | None = None
) -> Vectors:
    """Quantize float embeddings.

    Args:
        embeddings: float [N, dimensions].
        precision: one of `EMBEDDING_PRECISIONS`.
        ranges: smallest and largest value of each dimension [2, dimensions], for `int8` and `uint8`; values outside
            saturate. Vectors are comparable only with those of the same ranges. By default those of `embeddings`.

    Returns:
        An array [N, `embedding_width`] of `embedding_dtype`.

    Raises:
        InputError: the precision is unknown, the ranges do not fit, or a number is not finite.
    """
    check_precision(precision)
    if precision == "float32":
        return embeddings.astype(np.float32, copy=False)
    if precision.endswith("binary"):
        packed = np.packbits(embeddings > 0, axis=-1)
        return packed if precision == "ubinary" else (packed ^ _SIGNED_OFFSET).view(np.int8)
    if not len(embeddings):
        return np.empty(embeddings.shape, embedding_dtype(precision))
    if not np.isfinite(embeddings).all():
        raise InputError("expected embeddings of finite numbers, found NaN or infinity")
    limits = embedding_ranges(embeddings) if ranges is None else np.asarray(ranges, dtype=np.float32)
    if limits.shape != (2, embeddings.shape[1]):
        raise InputError(
            f"expected ranges [2, {embeddings.shape[1]}], the least and the greatest value of each dimension, "
            f"found {list(limits.shape)}"
        )
    steps = (limits[1] - limits[0]) / _STEPS
    levels = np.floor((embeddings - limits[0]) / np.where(steps == 0, 1, steps)).clip(0, _STEPS).astype(np.uint8)
    return levels if precision == "uint8" else (levels ^ _SIGNED_OFFSET).view(np.int8)


def unpacked_embeddings(vectors: Vectors, precision: str, dimensions: int) -> Float32Array:
    """Return embeddings of any precision as numbers to compare by cosine, one for each dimension: float32 [N, …].

    Signs become -1 and 1, whose dot product is `dimensions` less twice the Hamming distance. The levels of `int8` and
    `uint8` stay as they are, which is how vector databases compare them.
    """
    if not precision.endswith("binary"):
        return vectors.astype(np.float32, copy=False)
    packed = vectors.view(np.uint8)
    if precision == "binary":
        packed = packed ^ np.uint8(_SIGNED_OFFSET)
    return np.unpackbits(packed, axis=-1, count=dimensions).astype(np.float32) * 2 - 1
