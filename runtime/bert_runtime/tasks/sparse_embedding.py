"""sparse-embedding: weights of the vocabulary's tokens for a text, to be compared by dot product (SPLADE)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.records import Record
from bert_runtime.similarity import cosine
from bert_runtime.sparse_index import SparseIndex
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_int, check_number
from bert_runtime.tasks.ranking_rows import ranking_metrics, ranking_qrels, read_ranking_row
from bert_runtime.tasks.text_inputs import separate_texts
from bert_runtime.tasks.values import Example, Outputs, Result, TextInput, stack_single_window
from bert_runtime.tasks.vector_results import SparseVector

__all__ = ["SPARSE_ACTIVATIONS", "SPARSE_POOLINGS", "SparseEmbedding"]

SPARSE_POOLINGS = ("max", "sum")
"""How the weights of a vocabulary's token at all tokens of a text become one: their maximum (SPLADE v2, Formal et al.,
arXiv:2109.10086) or their sum (SPLADE, arXiv:2107.05720)."""

SPARSE_ACTIVATIONS = ("relu", "log1p_relu")
"""Functions of a logit x, by the names of sentence-transformers: `relu` is log(1 + max(0, x)); `log1p_relu` takes the
logarithm once more, log(1 + log(1 + max(0, x))) (Geng et al., arXiv:2504.14839)."""


@dataclass(frozen=True, kw_only=True)
class SparseEmbedding(Task):
    """A weight for every token of the vocabulary, most of them 0; the graph pools the logits of all tokens."""

    vocab_size: int
    """Number of weights: the size of the model's vocabulary."""
    pooling: str = "max"
    """How the tokens of a text are pooled, one of `SPARSE_POOLINGS`."""
    activation: str = "relu"
    """Function of a logit, one of `SPARSE_ACTIVATIONS`."""
    top_k: int | None = None
    """Maximum number of tokens of a result; by default all with a weight."""
    min_weight: float = 0.0
    """Tokens of a result have a larger weight."""

    name: ClassVar[str] = "sparse-embedding"
    output: ClassVar[str] = "weights"

    def __post_init__(self) -> None:
        check_int("vocab_size", self.vocab_size, minimum=1)
        if self.pooling not in SPARSE_POOLINGS:
            raise ValueError(f"expected a pooling of {', '.join(SPARSE_POOLINGS)}, found {self.pooling!r}")
        if self.activation not in SPARSE_ACTIVATIONS:
            raise ValueError(f"expected an activation of {', '.join(SPARSE_ACTIVATIONS)}, found {self.activation!r}")
        if self.top_k is not None:
            check_int("top_k", self.top_k, minimum=1)
        check_number("min_weight", self.min_weight, 0)

    @property
    def options(self) -> tuple[str, ...]:
        """The selection of a result's tokens."""
        return ("top_k", "min_weight")

    @property
    def output_width(self) -> int:
        """The vocabulary."""
        return self.vocab_size

    @property
    def metric(self) -> str:
        """Mean reciprocal rank of each row's second text among all second texts of the file."""
        return "mrr_at_10"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Mean cosine similarity of 0.99 with the FP32 weights."""
        return "mean_cosine", 0.99

    @property
    def reads_first_token_only(self) -> bool:
        """All tokens are pooled."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, those of results only where they are not the default."""
        settings = super().to_dict()
        if self.top_k is None:
            del settings["top_k"]
        if not self.min_weight:
            del settings["min_weight"]
        return settings

    def decode(self, outputs: Outputs) -> Result:
        """Select the tokens with a weight from the output [vocabulary], largest weight first."""
        (weights,) = outputs.arrays
        indices = self._selected(weights)
        tokens = tuple(map(outputs.vocabulary.id_to_token, indices.tolist()))
        return SparseVector(indices, weights[indices], tokens, truncated=outputs.truncated)

    def _selected(self, weights: FloatArray) -> IntArray:
        """Return the tokens of a result from the weights [vocabulary], largest weight first."""
        indices = np.flatnonzero(weights > self.min_weight)
        return indices[np.argsort(-weights[indices], kind="stable")][: self.top_k]

    def limited(self, weights: FloatArray) -> FloatArray:
        """Return weights [vocabulary] with 0 at the tokens that a result would not have."""
        if self.top_k is None and not self.min_weight:
            return weights
        limited, indices = np.zeros_like(weights), self._selected(weights)
        limited[indices] = weights[indices]
        return limited

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return one text or two as separate inputs."""
        return separate_texts(record)

    def example(self, record: Record) -> Example:
        """Convert a row of a query and a text that answers it; the target is that text."""
        row = read_ranking_row(record)
        return Example((TextInput(row.query), TextInput(row.answer)), row.answer)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Rank all distinct second texts for each first text: MRR, nDCG and recall."""
        return ranking_metrics(self.rank(outputs, examples), ranking_qrels(examples))

    def rank(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, dict[str, float]]:
        """Return the scores of the ten nearest of all distinct second texts by first text, by dot product."""
        texts, index = self.index(outputs)
        queries = {output.input.text: self.limited(output.arrays[0]) for output in outputs[0::2]}
        return {
            query: {texts[number]: score for number, score in index.search(weights, 10)}
            for query, weights in queries.items()
        }

    def index(self, outputs: Sequence[Outputs]) -> tuple[list[str], SparseIndex]:
        """Return the distinct second texts of all examples, and their index."""
        vectors = {output.input.text: self.limited(output.arrays[0]) for output in outputs[1::2]}
        return list(vectors), SparseIndex(vectors.values(), self.vocab_size)

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """Measure cosine similarity, and the share of the 32 largest weights' tokens that are the same."""
        found, expected = stack_single_window(outputs), stack_single_window(reference)
        similarity = _cosine(found, expected)
        return {
            "mean_cosine": float(similarity.mean()),
            "p1_cosine": float(np.percentile(similarity, 1)),
            "top_32_overlap": float(np.mean([_overlap(a, b, 32) for a, b in zip(found, expected, strict=True)])),
        }


def _cosine(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the cosine similarity of N pairs of vectors: two [N, V] → [N]; 1 where both have no weight at all."""
    both_zero = ~x.any(axis=-1) & ~y.any(axis=-1)
    return np.where(both_zero, 1, cosine(x, y))


def _overlap(x: FloatArray, y: FloatArray, k: int) -> float:
    """Return the share of the `k` largest weights' tokens that two vectors [V] have in common; 1 if there are none."""
    first, second = (
        {int(token) for token in np.argsort(-weights, kind="stable")[:k] if weights[token] > 0} for weights in (x, y)
    )
    return len(first & second) / max(len(first), len(second)) if first or second else 1.0
