"""Results of tasks that make a vector of a text."""

from dataclasses import dataclass, field
from typing import Any

from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.tasks.values import Result
from bert_runtime.vector_quantization import Vectors

__all__ = ["Embedding", "SparseVector"]


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Result):
    """The embedding of one text.

    As JSON: `{"embedding": [0.031, -0.046, …]}`.
    """

    vector: Vectors
    """The embedding: float32 [dimensions], or as `SentenceEmbedding.embedding_precision` says."""

    def to_dict(self) -> dict[str, Any]:
        return {"embedding": self.vector.tolist(), **self._marks()}

    def summary(self) -> str:
        style = ".4f" if self.vector.dtype.kind == "f" else "d"
        return f"[{', '.join(format(x, style) for x in self.vector[:4])}, …] ({len(self.vector)})"


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector(Result):
    """The sparse embedding of one text: the n tokens of the vocabulary that it weighs, largest weight first.

    As JSON: `{"sparse_embedding": {"card": 2.42, "lost": 2.31}}`.
    """

    indices: IntArray
    """Token ids: int64 [n]."""
    weights: FloatArray
    """The weight of each token, above 0: float32 [n]."""
    tokens: tuple[str, ...] = field(repr=False)
    """The n tokens as the vocabulary spells them."""

    def to_dict(self) -> dict[str, Any]:
        weights = dict(zip(self.tokens, self.weights.tolist(), strict=True))
        return {"sparse_embedding": weights, **self._marks()}

    def summary(self) -> str:
        shown = zip(self.tokens[:5], self.weights[:5].tolist(), strict=True)
        more = f", … ({len(self.tokens)})" if len(self.tokens) > 5 else ""
        return (", ".join(f"{token} {weight:.4f}" for token, weight in shown) or "no tokens") + more
