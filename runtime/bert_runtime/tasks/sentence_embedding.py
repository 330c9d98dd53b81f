"""sentence-embedding: one vector per text, to be compared by cosine similarity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bert_runtime.metrics import pearson, spearman
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, Outputs, Result, Task, TextInput, stack_single_window

__all__ = ["DENSE_ACTIVATIONS", "POOLINGS", "Embedding", "SentenceEmbedding", "cosine"]

POOLINGS = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "attention")
"""How token vectors are pooled into one, padding left out.

`mean`: their mean. `cls`: the first token's vector. `max`: the maximum per dimension. `mean_sqrt_len`: their sum
divided by the square root of their number. `weighted_mean`: the mean weighted by position, counted from 1. `attention`:
the mean weighted by a learned score."""

DENSE_ACTIVATIONS = ("identity", "tanh", "relu", "gelu")
"""Activations of the dense layers after pooling."""


def cosine(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the cosine similarity of N pairs of vectors: two [N, H] → [N]; 0 where a vector is zero."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    dot_products: FloatArray = np.einsum("nh,nh->n", x, y)
    return dot_products / np.maximum(norms, np.finfo(norms.dtype).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Result):
    """The embedding of one text.

    As JSON: `{"embedding": [0.031, -0.046, …]}`.
    """

    vector: FloatArray
    """The embedding: float32 [dimensions]."""

    def to_dict(self) -> dict[str, Any]:
        return {"embedding": self.vector.tolist(), **self._truncation()}

    def summary(self) -> str:
        return f"[{', '.join(f'{x:.4f}' for x in self.vector[:4])}, …] ({len(self.vector)})"


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(Task):
    """Pooled token vectors, with optional dense layers and L2 normalization; the graph computes all of it."""

    dimensions: int
    """Size of the embedding. If smaller than the pooled vector or the last dense layer's output, only the first
    dimensions of that are kept, before normalization (Matryoshka embeddings, Kusupati et al., arXiv:2205.13147)."""
    pooling: str = "mean"
    """How token vectors are pooled, one of `POOLINGS`."""
    dense_sizes: tuple[int, ...] = ()
    """Output size of each dense layer between pooling and normalization."""
    dense_activations: tuple[str, ...] = ()
    """Activation of each dense layer, one of `DENSE_ACTIVATIONS`."""
    normalize: bool = True
    """Whether the embedding is L2-normalized."""

    name: ClassVar[str] = "sentence-embedding"
    output: ClassVar[str] = "embedding"

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"expected a pooling of {', '.join(POOLINGS)}, found {self.pooling!r}")
        if not isinstance(self.normalize, bool):
            raise TypeError(f"expected normalize to be true or false, found {self.normalize!r}")
        if not isinstance(self.dimensions, int):
            raise TypeError(f"expected dimensions to be a whole number, found {self.dimensions!r}")
        if self.dimensions < 1:
            raise ValueError(f"expected at least one dimension, found {self.dimensions}")
        narrow = bool(self.dense_sizes) and self.dense_sizes[-1] < self.dimensions
        if narrow or len(self.dense_sizes) != len(self.dense_activations):
            raise ValueError(
                f"expected a size and an activation per dense layer, the last of at least {self.dimensions}, "
                f"found {list(self.dense_sizes)} and {list(self.dense_activations)}"
            )
        unknown = sorted(set(self.dense_activations) - set(DENSE_ACTIVATIONS))
        if unknown:
            raise ValueError(f"expected activations of {', '.join(DENSE_ACTIVATIONS)}, found {', '.join(unknown)}")

    @property
    def output_width(self) -> int:
        """The embedding."""
        return self.dimensions

    @property
    def metric(self) -> str:
        """Spearman correlation of cosine similarities with the labelled scores."""
        return "spearman"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Mean cosine similarity of 0.99 with the FP32 embeddings."""
        return "mean_cosine", 0.99

    @property
    def reads_first_token_only(self) -> bool:
        """Only `cls` pooling reads the first token alone."""
        return self.pooling == "cls"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, those of dense layers only where there are any."""
        settings = super().to_dict()
        if not self.dense_sizes:
            del settings["dense_sizes"], settings["dense_activations"]
        return settings

    def decode(self, outputs: Outputs) -> Result:
        """Return the output [dimensions] as it is."""
        return Embedding(outputs.arrays[0], truncated=outputs.truncated)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return one text or two as separate inputs."""
        second = record.optional_text("text_pair")
        return (TextInput(record.text()), *([] if second is None else [TextInput(second)]))

    def example(self, record: Record) -> Example:
        """Convert a row of two texts and their similarity, on any scale."""
        return Example((TextInput(record.text()), TextInput(record.text("text_pair"))), record.number("score"))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        expected = np.array([example.target for example in examples], dtype=np.float64)
        vectors = stack_single_window(outputs)
        similarity = cosine(vectors[0::2], vectors[1::2])
        return {"spearman": spearman(similarity, expected), "pearson": pearson(similarity, expected)}

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        similarity = cosine(stack_single_window(outputs), stack_single_window(reference))
        return {
            "mean_cosine": float(similarity.mean()),
            "p1_cosine": float(np.percentile(similarity, 1)),
            "min_cosine": float(similarity.min()),
        }
