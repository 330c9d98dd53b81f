"""replaced-token-detection: predict for every token whether it replaces the original one (ELECTRA)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bert_runtime.errors import DataError
from bert_runtime.metrics import micro_f1
from bert_runtime.numerics import FloatArray, IntArray, sigmoid
from bert_runtime.records import Record
from bert_runtime.tasks.checks import check_number
from bert_runtime.tasks.tokens import TextTokens, TokenTask, find_first_tokens, join_words, merge_windows
from bert_runtime.tasks.values import Example, Outputs, Result

__all__ = ["LABELS", "ReplacedTokenDetection", "ReplacedTokens"]

LABELS = ("original", "replaced")
"""Tags of words in a labelled file."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedTokens(Result):
    """The predictions for the T tokens of one text, whether each was replaced.

    As JSON: a list of `{"token": "card", "score": 0.02, "replaced": false, "start": 3, "end": 7}`, one per token, where
    `start` and `end` are characters of the text.
    """

    scores: FloatArray
    """Probability that each token was replaced, in [0, 1]: float32 [T]."""
    replaced: tuple[bool, ...]
    """Whether each token's probability is at least the threshold."""
    tokens: TextTokens = field(repr=False)
    """The tokens with their character offsets and raw outputs: float32 [T]."""

    def to_dict(self) -> Any:
        tokens = zip(self.tokens.strings, self.scores, self.replaced, self.tokens.offsets.tolist(), strict=True)
        return [
            {"token": token, "score": float(score), "replaced": replaced, "start": start, "end": end}
            for token, score, replaced, (start, end) in tokens
        ]

    def summary(self) -> str:
        tokens = zip(self.tokens.strings, self.scores, self.replaced, strict=True)
        return ", ".join(f"{token} {score:.4f}" for token, score, replaced in tokens if replaced) or "none"


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(TokenTask):
    """ELECTRA's discriminator: one logit for every token (Clark et al., arXiv:2003.10555)."""

    threshold: float = 0.5
    """Minimum probability of a token that counts as replaced."""

    name: ClassVar[str] = "replaced-token-detection"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0, 1)

    @property
    def options(self) -> tuple[str, ...]:
        """Threshold on the probability."""
        return ("threshold",)

    @property
    def metric(self) -> str:
        """F1 of the replaced words; accuracy would reward predicting none, because most words are original."""
        return "f1"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal decisions for 95 % of the tokens."""
        return "label_agreement", 0.95

    def decode(self, outputs: Outputs) -> Result:
        """Compute each token's probability from the logits [tokens] of each window."""
        tokens = merge_windows(outputs)
        scores = sigmoid(tokens.values)
        return ReplacedTokens(scores, tuple((scores >= self.threshold).tolist()), tokens)

    def example(self, record: Record) -> Example:
        """Convert a row of words, each tagged original or replaced."""
        text, spans = join_words(record.tokens())
        tags = record.tags()
        unknown = sorted(set(tags) - set(LABELS))
        if unknown:
            raise DataError(f"{record.where}: expected tags {' and '.join(LABELS)}, found {', '.join(unknown)}")
        return Example((text,), (spans, np.array([LABELS.index(tag) for tag in tags], dtype=np.int64)))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute F1 and accuracy over words, by first tokens; a word that the tokenizer drops counts as original."""
        found = np.concatenate(
            [
                self.predict_words(output, example.target[0]) >= self.threshold
                for output, example in zip(outputs, examples, strict=True)
            ]
        )
        expected = np.concatenate([example.target[1] for example in examples]) == 1
        return {"f1": micro_f1(found, expected), "accuracy": float((found == expected).mean())}

    def predict_words(self, outputs: Outputs, words: IntArray) -> FloatArray:
        """Return the probability that each word was replaced, by its first token; NaN for a word that is dropped.

        Args:
            outputs: the outputs for one text.
            words: start and end character of each word: [W, 2].

        Returns:
            Probabilities [W].
        """
        tokens = merge_windows(outputs)
        first = find_first_tokens(tokens.offsets, words)
        probabilities = np.full(len(words), np.nan, dtype=tokens.values.dtype)
        probabilities[first >= 0] = sigmoid(tokens.values[first[first >= 0]])
        return probabilities

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = (
            np.concatenate([merge_windows(output).values for output in part]) for part in (outputs, reference)
        )
        same = (sigmoid(found) >= self.threshold) == (sigmoid(expected) >= self.threshold)
        return {"label_agreement": float(same.mean()), "mean_abs_logit_drift": float(np.abs(found - expected).mean())}
