"""sentence-embedding: one vector for a text, made to be compared by cosine."""

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
"""Ways to turn token vectors into one: over the real tokens their mean, their maximum per dimension, their sum over the
square root of their number, or their mean weighted by position from 1 or by a learned score; or the first token's
vector."""

DENSE_ACTIVATIONS = ("identity", "tanh", "relu", "gelu")
"""Activations of the dense layers that may follow the pooling."""


def cosine(x: FloatArray, y: FloatArray) -> FloatArray:
    """Cosine similarity of matching rows: two [N, H] → [N]; 0 where a row is all zero."""
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    products: FloatArray = np.einsum("nh,nh->n", x, y)
    return products / np.maximum(norms, np.finfo(norms.dtype).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Result):
    """The vector of one text: float32 [dimensions]."""

    vector: FloatArray

    def to_dict(self) -> dict[str, Any]:
        return {"embedding": self.vector.tolist()}

    def summary(self) -> str:
        return f"[{', '.join(f'{x:.4f}' for x in self.vector[:4])}, …] ({len(self.vector)})"


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(Task):
    """Pooled token vectors, through dense layers if there are any, L2-normalised or not: all of it in the graph."""

    dimensions: int
    """Width of the vector that comes out; less than what goes into the last step keeps the first ones (Kusupati et al.,
    arXiv:2205.13147), before it is normalised."""
    pooling: str = "mean"
    dense_sizes: tuple[int, ...] = ()
    """Output width of each dense layer between pooling and normalisation."""
    dense_activations: tuple[str, ...] = ()
    """Activation of each dense layer, one of `DENSE_ACTIVATIONS`."""
    normalize: bool = True

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
        strange = sorted(set(self.dense_activations) - set(DENSE_ACTIVATIONS))
        if strange:
            raise ValueError(f"expected activations of {', '.join(DENSE_ACTIVATIONS)}, found {', '.join(strange)}")

    @property
    def metric(self) -> str:
        """Rank correlation of cosines with people's judgement."""
        return "spearman"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Mean cosine with the FP32 vectors."""
        return "mean_cosine", 0.99

    @property
    def reads_first_token_only(self) -> bool:
        """CLS pooling reads only the first row; the mean reads all of them."""
        return self.pooling == "cls"

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; dense layers only where there are any."""
        settings = super().to_dict()
        if not self.dense_sizes:
            del settings["dense_sizes"], settings["dense_activations"]
        return settings

    def decode(self, outputs: Outputs) -> Result:
        """The vector [dimensions] as it is."""
        return Embedding(outputs.arrays[0])

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """One text or two, each with an embedding of its own."""
        second = record.optional_text("text_pair")
        return (TextInput(record.text()), *([] if second is None else [TextInput(second)]))

    def example(self, record: Record) -> Example:
        """Two texts and how similar people found them, on any scale."""
        return Example((TextInput(record.text()), TextInput(record.text("text_pair"))), record.number("score"))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        expected = np.array([example.target for example in examples], dtype=np.float64)
        vectors = stack_single_window(outputs)
        similarity = cosine(vectors[0::2], vectors[1::2])
        return {"spearman": spearman(similarity, expected), "pearson": pearson(similarity, expected)}

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        similarity = cosine(stack_single_window(outputs), stack_single_window(reference))
        return {"mean_cosine": float(similarity.mean()), "min_cosine": float(similarity.min())}
