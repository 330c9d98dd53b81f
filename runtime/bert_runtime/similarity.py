"""Similarities of embeddings, and exact search by them."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_runtime.numerics import Float32Array, FloatArray, IntArray, best_columns

__all__ = [
    "SIMILARITIES",
    "Neighbors",
    "cosine",
    "cosine_agreement",
    "nearest_neighbors",
    "normalized",
    "pairwise_similarity",
    "similarity_matrix",
]

_QUERY_BLOCK = 1024
"""Queries that are compared with a block of documents at a time, so that memory stays bounded (a judgement)."""


def normalized(vectors: FloatArray) -> FloatArray:
    """Return vectors [N, H] divided by their L2 norms; a vector of zeros stays one."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    quotient: FloatArray = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return quotient


def cosine(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the cosine similarity of N pairs of vectors: two [N, H] → [N]; 0 where a vector is zero."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    dot_products: FloatArray = np.einsum("nh,nh->n", x, y)
    return dot_products / np.maximum(norms, np.finfo(norms.dtype).tiny)


def cosine_agreement(x: FloatArray, y: FloatArray) -> dict[str, float]:
    """Return the mean, the first percentile and the minimum of the cosine similarity of N pairs of vectors [N, H]."""
    similarity = cosine(x, y)
    return {
        "mean_cosine": float(similarity.mean()),
        "p1_cosine": float(np.percentile(similarity, 1)),
        "min_cosine": float(similarity.min()),
    }


def _cosine_matrix(x: FloatArray, y: FloatArray) -> FloatArray:
    return normalized(x) @ normalized(y).T


def _dot(x: FloatArray, y: FloatArray) -> FloatArray:
    return x @ y.T


def _euclidean(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.stack([-np.linalg.norm(y - vector, axis=1) for vector in x]).astype(x.dtype)


def _manhattan(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.stack([-np.abs(y - vector).sum(axis=1) for vector in x]).astype(x.dtype)


SIMILARITIES: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "cosine": _cosine_matrix,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
"""Similarities by sentence-transformers' names; distances are negative, so that more is nearer."""


def similarity_matrix(x: FloatArray, y: FloatArray, name: str = "cosine") -> FloatArray:
    """Return the similarities of all pairs of vectors.

    Args:
        x: float [N, H].
        y: float [M, H].
        name: one of `SIMILARITIES`.

    Returns:
        An array [N, M].
    """
    if not len(x) or not len(y):
        return np.empty((len(x), len(y)), dtype=np.float32)
    return SIMILARITIES[name](x, y)


def pairwise_similarity(x: FloatArray, y: FloatArray, name: str = "cosine") -> FloatArray:
    """Return the similarity of each vector with the other one of its row: two [N, H] → float32 [N]."""
    pairs = zip(x, y, strict=True)
    return np.array([similarity_matrix(a[None], b[None], name)[0, 0] for a, b in pairs], dtype=np.float32)


class Neighbors(NamedTuple):
    """The nearest vectors of each query, nearest first."""

    indices: IntArray
    """Numbers of the vectors: int64 [N, k]."""
    scores: Float32Array
    """Their similarities: float32 [N, k]."""


def nearest_neighbors(queries: FloatArray, blocks: Iterable[FloatArray], k: int, name: str = "cosine") -> Neighbors:
    """Search exactly, holding one block of vectors at a time.

    Args:
        queries: float [N, H].
        blocks: the vectors that are searched, a part at a time: float [M, H] each.
        k: neighbors per query; fewer where there are fewer vectors.
        name: one of `SIMILARITIES`.

    Returns:
        The neighbors. Vectors are numbered through all blocks; of equally near ones, the first come first.
    """
    found = Neighbors(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
    for first, block in _numbered(blocks):
        parts = [
            _merged(
                Neighbors(found.indices[start:stop], found.scores[start:stop]),
                similarity_matrix(queries[start:stop], block, name).astype(np.float32, copy=False),
                first,
                k,
            )
            for start in range(0, len(queries), _QUERY_BLOCK)
            for stop in [start + _QUERY_BLOCK]
        ]
        if parts:
            found = Neighbors(*map(np.concatenate, zip(*parts, strict=True)))
    return found


def _numbered(blocks: Iterable[FloatArray]) -> Iterator[tuple[int, FloatArray]]:
    """Yield the blocks with the number of their first vector."""
    first = 0
    for block in blocks:
        yield first, block
        first += len(block)


def _merged(found: Neighbors, scores: Float32Array, first: int, k: int) -> Neighbors:
    """Return the `k` best of what was found and of a block's scores [N, M], whose first vector has number `first`."""
    indices = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    if scores.shape[1] > k:
        indices = best_columns(scores, k)
        scores = np.take_along_axis(scores, indices, axis=1)
    indices = np.concatenate([found.indices, indices + first], axis=1)
    scores = np.concatenate([found.scores, scores], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Neighbors(np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1))
