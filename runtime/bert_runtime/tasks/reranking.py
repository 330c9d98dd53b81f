"""rerank: how relevant a document is to a query, read together as a pair (a cross-encoder)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tokenizers import Encoding

from bert_runtime.metrics import logit_drift, pearson, retrieval_metrics
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.records import Record
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_flag, check_int
from bert_runtime.tasks.relevance_rows import read_pairs, read_relevance_row
from bert_runtime.tasks.sentence_embedding import DENSE_ACTIVATIONS, POOLINGS
from bert_runtime.tasks.text_inputs import pair_with_next
from bert_runtime.tasks.values import Example, Outputs, Result, TextInput

__all__ = ["LONG_DOCUMENTS", "RELEVANCE_ACTIVATIONS", "Relevance", "Reranking", "is_truncated", "max_logits"]

RELEVANCE_ACTIVATIONS = ("sigmoid", "identity")
"""Functions from a logit to a score: a probability, or the logit as it is. Neither changes the order of documents."""

LONG_DOCUMENTS = ("windows", "truncate")
"""Treatment of documents that do not fit beside the query.

`windows`: overlapping windows, of which the best one counts (MaxP; Dai and Callan, arXiv:1905.09217). `truncate`: what
exceeds the maximum is dropped, as sentence-transformers does.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Relevance(Result):
    """The relevance of one document to a query.

    As JSON: `{"score": 0.98, "logit": 3.9}`.
    """

    score: float
    """The logit after the task's `activation`."""
    logit: float
    """The raw output, of a document in windows that of the best one; higher is more relevant."""

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.score, "logit": self.logit, **self._marks()}

    def summary(self) -> str:
        return f"{self.score:.4f}"


@dataclass(frozen=True, kw_only=True)
class Reranking(Task):
    """One logit for a query and a document, by a classification head or by pooling and dense layers."""

    activation: str = "sigmoid"
    """One of `RELEVANCE_ACTIVATIONS`."""
    long_documents: str = "windows"
    """One of `LONG_DOCUMENTS`."""
    pooling: str | None = None
    """How token vectors are pooled, one of `POOLINGS`; `None` for the family's classification head."""
    dense_sizes: tuple[int, ...] = ()
    """Output size of each dense layer after the pooling, the last of which is 1."""
    dense_activations: tuple[str, ...] = ()
    """Activation of each dense layer, one of `DENSE_ACTIVATIONS`."""
    dense_norms: tuple[bool, ...] = ()
    """Whether a layer normalization follows each dense layer."""

    name: ClassVar[str] = "rerank"
    output: ClassVar[str] = "logits"
    repeats_texts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, values in (("activation", RELEVANCE_ACTIVATIONS), ("long_documents", LONG_DOCUMENTS)):
            if getattr(self, name) not in values:
                raise ValueError(f"expected {name} to be {' or '.join(values)}, found {getattr(self, name)!r:.80}")
        if self.pooling not in (None, *POOLINGS):
            raise ValueError(f"expected a pooling of {', '.join(POOLINGS)}, found {self.pooling!r:.80}")
        for size in self.dense_sizes:
            check_int("dense_sizes", size, minimum=1)
        for norm in self.dense_norms:
            check_flag("dense_norms", norm)
        lengths = {len(self.dense_sizes), len(self.dense_activations), len(self.dense_norms)}
        if (
            len(lengths) > 1
            or (self.pooling is not None) != (self.dense_sizes[-1:] == (1,))
            or self.dense_norms[-1:] == (True,)
        ):
            raise ValueError(
                "expected a pooling with a size, an activation and a norm per dense layer, the last of size 1 without "
                f"norm, or none of these, found {self.pooling}, {list(self.dense_sizes)}, "
                f"{list(self.dense_activations)} and {list(self.dense_norms)}"
            )
        if unknown := sorted(set(self.dense_activations) - set(DENSE_ACTIVATIONS)):
            raise ValueError(f"expected activations of {', '.join(DENSE_ACTIVATIONS)}, found {', '.join(unknown)}")

    @property
    def options(self) -> tuple[str, ...]:
        """The function from logits to scores, and the treatment of long documents."""
        return ("activation", "long_documents")

    @property
    def splits_long_inputs(self) -> bool:
        """Whether documents are, as `long_documents` says."""
        return self.long_documents == "windows"

    @property
    def output_width(self) -> int:
        """One logit."""
        return 1

    @property
    def metric(self) -> str:
        """Mean nDCG of the ten best documents of each query."""
        return "ndcg_at_10"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """A Pearson correlation of 0.99 with FP32's logits, as for regression."""
        return "pearson", 0.99

    @property
    def reads_first_token_only(self) -> bool:
        """Classification heads and `cls` pooling read the first token only."""
        return self.pooling in (None, "cls")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, those of pooling and dense layers only where there are any."""
        settings = super().to_dict()
        if self.pooling is None:
            for name in ("pooling", "dense_sizes", "dense_activations", "dense_norms"):
                del settings[name]
        return settings

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        return "expected a query and a document, found one text" if value.text_pair is None else None

    def decode(self, outputs: Outputs) -> Result:
        """Return the largest logit of all windows, and its score."""
        logit = max_logits([outputs])
        score = sigmoid(logit) if self.activation == "sigmoid" else logit
        return Relevance(float(score[0]), float(logit[0]), truncated=is_truncated(outputs))

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return the query of a row with each of its documents, see `relevance_rows`."""
        return read_pairs(record)

    def example(self, record: Record) -> Example:
        """Convert a row to its pairs, and a grade for each, see `relevance_rows`."""
        _, pairs, grades = read_relevance_row(record)
        return Example(pairs, grades)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute nDCG and MRR of the ten best documents of each query; rows of one query are ranked together.

        A document of grade 1 or more is relevant. Queries without any are left out; NaN if there is no other.
        """
        grades = [grade for example in examples for grade in example.target]
        run: dict[str, dict[str, float]] = {}
        qrels: dict[str, dict[str, float]] = {}
        for number, (output, logit, grade) in enumerate(zip(outputs, max_logits(outputs), grades, strict=True)):
            run.setdefault(output.input.text, {})[f"{number:09}"] = float(logit)
            qrels.setdefault(output.input.text, {})[f"{number:09}"] = grade
        return retrieval_metrics(run, qrels, recall_at=())

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = max_logits(outputs), max_logits(reference)
        return {"pearson": pearson(found, expected), **logit_drift(found, expected)}

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Pair each text with the next one."""
        return pair_with_next(texts)


def max_logits(outputs: Sequence[Outputs]) -> FloatArray:
    """Return the largest logit over the windows of each of N pairs: float32 [N]."""
    return np.array([output.flat.max() for output in outputs], dtype=np.float32)


def is_truncated(outputs: Outputs) -> bool:
    """Return whether tokens of a pair were dropped: of all windows of a long document, those of its query."""
    return any(window.overflowing for window in outputs.encodings)
