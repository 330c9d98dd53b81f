"""feature-extraction: a vector for every token or word, from any layers of the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bert_runtime.errors import DataError, InputError
from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.records import Record
from bert_runtime.similarity import cosine_agreement
from bert_runtime.tasks.checks import check_flag, check_int
from bert_runtime.tasks.tokens import TokenTask, merge_windows, word_spans, word_vectors
from bert_runtime.tasks.values import Example, Outputs, Result

__all__ = ["LAYER_COMBINATIONS", "WORD_POOLINGS", "FeatureExtraction", "TokenVectors"]

LAYER_COMBINATIONS = ("concat", "mean", "sum")
"""How the vectors that several layers give a token become one: side by side (Devlin et al., arXiv:1810.04805, table 7),
their mean, or their sum."""

WORD_POOLINGS = ("none", "first", "mean")
"""How the vectors of a word's tokens become one: not at all, so that every token has its own; the first token's; or
their mean."""

_SHOWN_TOKENS = 8
"""Tokens that a summary names."""

_NO_LABELS = (
    "feature-extraction has no labels to compare its vectors with, and so no metric; measure the task that reads them, "
    "or compare INT8 with FP32 on typical texts: bert-export export --calibrate FILE"
)


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors(Result):
    """The vectors of the T tokens of one text, or of its T words.

    As JSON: a list of T lists of `width` numbers, which is what the pipeline gives for one text.
    """

    vectors: FloatArray
    """A vector for each token: float32 [T, width]."""
    tokens: tuple[str, ...] = field(repr=False)
    """The T tokens as the vocabulary spells them, or words as they stand in the text."""
    offsets: IntArray = field(repr=False)
    """Start and end character of each token, the end exclusive: int64 [T, 2]; (0, 0) for special tokens."""
    word_ids: IntArray = field(repr=False)
    """Index of the word that each token is part of, as the tokenizer splits words; -1 for special tokens: int64 [T]."""

    def to_dict(self) -> Any:
        return self.vectors.tolist()

    def summary(self) -> str:
        shown = ", ".join(self.tokens[:_SHOWN_TOKENS])
        more = ", …" if len(self.tokens) > _SHOWN_TOKENS else ""
        return f"{len(self.vectors)} × {self.vectors.shape[1]}: {shown}{more}"

    def pool(self, spans: Sequence[tuple[int, int]], pooling: str = "mean") -> FloatArray:
        """Return one vector for each part of the text, such as a word by another splitting, or a mention.

        Args:
            spans: start and end character of N parts, the end exclusive.
            pooling: `mean` of the tokens that lie in a part wholly or partly, or `first` of them.

        Returns:
            float32 [N, width]; zeros for a part without a token, such as white space.

        Raises:
            InputError: `pooling` is another one, or `spans` are no pairs of a start and an end not before it.
        """
        if pooling not in WORD_POOLINGS[1:]:
            raise InputError(f"expected a pooling of {', '.join(WORD_POOLINGS[1:])}, found {pooling!r:.50}")
        parts = _span_array(spans)
        pooled = np.zeros((len(parts), self.vectors.shape[1]), dtype=self.vectors.dtype)
        for vector, (start, end) in zip(pooled, parts, strict=True):
            inside = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end))
            if len(inside):
                vector[:] = self.vectors[inside[0]] if pooling == "first" else self.vectors[inside].mean(axis=0)
        return pooled


@dataclass(frozen=True, kw_only=True)
class FeatureExtraction(TokenTask):
    """Hidden states of the encoder's layers, combined by the graph; words are pooled from their tokens afterwards."""

    hidden_size: int
    """Width of a hidden state."""
    num_layers: int
    """Number of layers of the checkpoint. The graph ends at the highest one that is read."""
    layers: tuple[int, ...]
    """The hidden states that are read, in this order: 0 is the embeddings, n is what layer n computes, and the last one
    includes the encoder's final normalization, as in `output_hidden_states` of transformers."""
    layer_combination: str = "concat"
    """How several hidden states become one vector, one of `LAYER_COMBINATIONS`."""
    word_pooling: str = "none"
    """How the vectors of a word's tokens become one, one of `WORD_POOLINGS`."""
    special_tokens: bool = True
    """Whether special tokens such as `[CLS]` have vectors in results, as in the pipeline. Among words they have not."""

    name: ClassVar[str] = "feature-extraction"
    output: ClassVar[str] = "features"
    has_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_int("hidden_size", self.hidden_size, minimum=1)
        check_int("num_layers", self.num_layers, minimum=1)
        self._check_layers()
        if self.layer_combination not in LAYER_COMBINATIONS:
            known = ", ".join(LAYER_COMBINATIONS)
            raise ValueError(f"expected a layer_combination of {known}, found {self.layer_combination!r:.50}")
        if self.word_pooling not in WORD_POOLINGS:
            raise ValueError(f"expected a word_pooling of {', '.join(WORD_POOLINGS)}, found {self.word_pooling!r:.50}")
        check_flag("special_tokens", self.special_tokens)

    def _check_layers(self) -> None:
        if not isinstance(self.layers, tuple) or not self.layers:
            raise ValueError(f"expected layers to be a list of at least one number, found {self.layers!r:.80}")
        for layer in self.layers:
            check_int("layers", layer, minimum=0)
            if layer > self.num_layers:
                raise ValueError(
                    f"expected layers of 0 (the embeddings) to {self.num_layers} (the last layer), found {layer}"
                )
        if repeated := sorted({layer for layer in self.layers if self.layers.count(layer) > 1}):
            raise ValueError(f"expected each layer once, found {', '.join(map(str, repeated))} more than once")
        if not max(self.layers):
            raise ValueError(
                "expected a layer above 0: hidden state 0 is the embeddings, which depend on no other token; read it "
                "beside others"
            )

    @property
    def options(self) -> tuple[str, ...]:
        """Whether there is a vector for each token or each word, and for special tokens."""
        return ("word_pooling", "special_tokens")

    @property
    def depth(self) -> int:
        """Number of layers that are computed: up to the highest one that is read."""
        return max(self.layers)

    @property
    def output_width(self) -> int:
        """The hidden size, times the number of layers where they stand side by side."""
        return self.hidden_size * (len(self.layers) if self.layer_combination == "concat" else 1)

    @property
    def metric(self) -> str:
        """None: there are no labels.

        Raises:
            InputError: always.
        """
        raise InputError(_NO_LABELS)

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Mean cosine similarity of 0.99 with the tokens' FP32 vectors."""
        return "mean_cosine", 0.99

    def decode(self, outputs: Outputs) -> Result:
        """Return the vectors of the tokens or words of a text from the output [tokens, width] of each window."""
        if self.word_pooling == "none":
            tokens = merge_windows(outputs, special_tokens=self.special_tokens)
            return TokenVectors(tokens.values, tokens.strings, tokens.offsets, tokens.word_ids)
        tokens = merge_windows(outputs)
        starts = tokens.word_starts
        spans = word_spans(tokens.offsets, starts)
        words = tuple(outputs.input.text[start:end] for start, end in spans.tolist())
        vectors = word_vectors(tokens.values, starts, mean=self.word_pooling == "mean")
        return TokenVectors(vectors, words, spans, tokens.word_ids[starts])

    def example(self, record: Record) -> Example:
        raise DataError(f"{record.where}: {_NO_LABELS}")

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        raise InputError(_NO_LABELS)

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        """Measure cosine similarity token by token."""
        found, expected = (
            np.concatenate([array for output in part for array in output.arrays]) for part in (outputs, reference)
        )
        return cosine_agreement(found, expected)


def _span_array(spans: Sequence[tuple[int, int]]) -> IntArray:
    """Return spans as an array int64 [N, 2]; raise `InputError` unless they are a start and an end not before it."""
    try:
        parts = np.asarray(spans, dtype=np.int64)
    except (TypeError, ValueError):
        raise InputError(f"expected spans as pairs of a start and an end, found {spans!r:.80}") from None
    if parts.size and (parts.ndim != 2 or parts.shape[1] != 2):
        raise InputError(f"expected spans as pairs of a start and an end, found an array {list(parts.shape)}")
    parts = parts.reshape(-1, 2)
    if (wrong := (parts[:, 0] < 0) | (parts[:, 1] < parts[:, 0])).any():
        start, end = parts[wrong.argmax()].tolist()
        raise InputError(f"expected spans with a start from 0 and an end not before it, found ({start}, {end})")
    return parts
