"""next-sentence-prediction: whether a text continues another (BERT), or two texts are in order (ALBERT)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from tokenizers import Encoding

from bert_runtime.errors import DataError
from bert_runtime.metrics import accuracy
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.text_inputs import pair_with_next
from bert_runtime.tasks.values import Example, Outputs, Result, TextInput, stack_single_window

__all__ = ["NextSentence", "NextSentencePrediction"]


@dataclass(frozen=True, slots=True, eq=False)
class NextSentence(Result):
    """The prediction whether the second text continues the first.

    As JSON: `{"label": "is_next", "score": 0.98}`.
    """

    label: str
    """The more probable label: by default `is_next` or `not_next`."""
    score: float
    """Probability of `label`, in [0, 1]: a softmax over both."""
    logits: FloatArray = field(repr=False)
    """Raw outputs for both labels, the continuation first: float32 [2]."""

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "score": self.score, **self._marks()}

    def summary(self) -> str:
        return f"{self.label}\t{self.score:.4f}"


@dataclass(frozen=True, kw_only=True)
class NextSentencePrediction(Task):
    """Binary classification of a pair of texts; class 0 is the true continuation, as in BERT and ALBERT."""

    labels: tuple[str, ...] = ("is_next", "not_next")
    """Names of the two classes."""

    name: ClassVar[str] = "next-sentence-prediction"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        if len(set(self.labels)) != 2:
            raise ValueError(f"expected two different labels, found {list(self.labels)}")

    @property
    def output_width(self) -> int:
        """One logit per label."""
        return len(self.labels)

    @property
    def metric(self) -> str:
        """Share of pairs that are classified correctly."""
        return "accuracy"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal labels for 97 % of the pairs."""
        return "label_agreement", 0.97

    @property
    def reads_first_token_only(self) -> bool:
        """The head starts from the pooler, which uses the first token."""
        return True

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        return "expected a pair of texts, found one text" if value.text_pair is None else None

    def decode(self, outputs: Outputs) -> Result:
        """Select the more probable label from the logits [2]."""
        logits = outputs.arrays[0]
        best = int(logits.argmax())
        score = float(softmax(logits)[best])
        return NextSentence(self.labels[best], score, logits, truncated=outputs.truncated)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        return (TextInput(record.text(), record.text("text_pair")),)

    def example(self, record: Record) -> Example:
        label = record.label()
        if label not in self.labels:
            raise DataError(f"{record.where}: expected a label of {', '.join(self.labels)}, found {label!r}")
        return Example(self.inputs(record), self.labels.index(label))

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        expected = np.array([example.target for example in examples], dtype=np.int64)
        return {"accuracy": accuracy(stack_single_window(outputs).argmax(axis=-1), expected)}

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = stack_single_window(outputs), stack_single_window(reference)
        return {
            "label_agreement": accuracy(found.argmax(axis=-1), expected.argmax(axis=-1)),
            "mean_abs_logit_drift": float(np.abs(found - expected).mean()),
        }

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Pair each text with the next one."""
        return pair_with_next(texts)
