"""replaced-token-detection: for every token, whether another one stood there (ELECTRA's discriminator)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bert_runtime.errors import DataError
from bert_runtime.metrics import micro_f1
from bert_runtime.numerics import FloatArray, sigmoid
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, Outputs, Result
from bert_runtime.tasks.checks import check_number
from bert_runtime.tasks.tokens import TextTokens, TokenTask, find_first_tokens, join_words, merge_windows

__all__ = ["LABELS", "ReplacedTokenDetection", "ReplacedTokens"]

LABELS = ("original", "replaced")
"""The tags of words in a labelled file."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedTokens(Result):
    """How probable it is that each token of one text was put in the place of another."""

    scores: FloatArray
    """Probability of being replaced, for each token [T]."""
    replaced: tuple[bool, ...]
    """Whether the probability reaches the threshold."""
    tokens: TextTokens = field(repr=False)
    """The tokens with their characters, and the model's raw outputs for them [T]."""

    def to_dict(self) -> Any:
        rows = zip(self.tokens.strings, self.scores, self.replaced, self.tokens.offsets.tolist(), strict=True)
        return [
            {"token": token, "score": float(score), "replaced": replaced, "start": start, "end": end}
            for token, score, replaced, (start, end) in rows
        ]

    def summary(self) -> str:
        rows = zip(self.tokens.strings, self.scores, self.replaced, strict=True)
        return ", ".join(f"{token} {score:.4f}" for token, score, replaced in rows if replaced) or "none"


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(TokenTask):
    """One logit for every token (Clark et al., arXiv:2003.10555)."""

    threshold: float = 0.5
    """Least probability of a token that counts as replaced."""

    name: ClassVar[str] = "replaced-token-detection"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0, 1)

    @property
    def options(self) -> tuple[str, ...]:
        """From which probability on a token counts as replaced."""
        return ("threshold",)

    @property
    def metric(self) -> str:
        """F1 of the replaced words: most words are original, which accuracy would reward."""
        return "f1"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal decisions on 95 % of the tokens."""
        return "label_agreement", 0.95

    def decode(self, outputs: Outputs) -> Result:
        """Logits [length] of each window → the probability of each token."""
        tokens = merge_windows(outputs)
        scores = sigmoid(tokens.values)
        return ReplacedTokens(scores, tuple((scores >= self.threshold).tolist()), tokens)

    def example(self, record: Record) -> Example:
        """Words, each tagged original or replaced."""
        text, spans = join_words(record.tokens())
        tags = record.tags()
        strange = sorted(set(tags) - set(LABELS))
        if strange:
            raise DataError(f"{record.where}: expected tags {' and '.join(LABELS)}, found {', '.join(strange)}")
        return Example((text,), (spans, np.array([LABELS.index(tag) for tag in tags], dtype=np.int64)))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Over words, each judged by its first token; one that the tokenizer leaves out counts as original."""
        found = np.concatenate(
            [self._words(each, example.target[0]) for each, example in zip(outputs, examples, strict=True)]
        )
        expected = np.concatenate([example.target[1] for example in examples]) == 1
        return {"f1": micro_f1(found, expected), "accuracy": float((found == expected).mean())}

    def _words(self, outputs: Outputs, words: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each of the given words [W, 2] counts as replaced."""
        tokens = merge_windows(outputs)
        firsts = find_first_tokens(tokens.offsets, words)
        replaced = np.zeros(len(words), dtype=bool)
        replaced[firsts >= 0] = sigmoid(tokens.values[firsts[firsts >= 0]]) >= self.threshold
        return replaced

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = (
            np.concatenate([merge_windows(each).values for each in part]) for part in (outputs, reference)
        )
        same = (sigmoid(found) >= self.threshold) == (sigmoid(expected) >= self.threshold)
        return {"label_agreement": float(same.mean()), "mean_abs_logit_drift": float(np.abs(found - expected).mean())}
