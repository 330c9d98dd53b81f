"""question-answering: extract the span of a context that answers a question (SQuAD 1.1 and 2.0)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import DataError
from bert_runtime.metrics import answer_f1, best_threshold, exact_match
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.answer_results import Answer, Answers
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_flag, check_int, check_number
from bert_runtime.tasks.tokens import (
    drop_padding,
    first_visible,
    kept_token_indices,
    text_token_indices,
    window_overlap,
)
from bert_runtime.tasks.values import Example, Outputs, Result, TextInput, WindowedText

__all__ = ["QuestionAnswering"]

_CONTEXT = 1
"""Index of the context among the two texts of an input."""


class _Span(NamedTuple):
    """A candidate answer."""

    score: float
    """Sum of its start and its end logit."""
    start: int
    """Index of its first character."""
    end: int
    """Index after its last character."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extractive question answering: a start and an end logit for every token of the context.

    Follows BERT's recipe for SQuAD (Devlin et al., arXiv:1810.04805). The score of a span is the sum of its start and
    its end logit; a start token is taken from the window in which it has most context, or, of a span that does not end
    there, from the next one. Probabilities are a softmax over the best candidates.
    """

    no_answer: bool = False
    """Whether a context may have no answer to its question (SQuAD 2.0)."""
    no_answer_threshold: float = 0.0
    """Maximum `Answers.no_answer_score` at which a span is returned, in logits; `evaluate` reports the best value."""
    max_answer_tokens: int = 30
    """Maximum length of an answer, in tokens."""
    n_best: int = 20
    """Number of candidates that the softmax runs over."""
    top_k: int = 1
    """Number of answers to return; at most `n_best`."""

    name: ClassVar[str] = "question-answering"
    output: ClassVar[str] = "logits"
    has_output_per_token: ClassVar[bool] = True
    windows: ClassVar[WindowedText | None] = "text_pair"

    def __post_init__(self) -> None:
        check_flag("no_answer", self.no_answer)
        check_number("no_answer_threshold", self.no_answer_threshold)
        for name in ("max_answer_tokens", "n_best", "top_k"):
            check_int(name, getattr(self, name), minimum=1)
        if self.top_k > self.n_best:
            raise ValueError(f"top_k must be at most n_best, {self.n_best}, found {self.top_k}")

    @property
    def options(self) -> tuple[str, ...]:
        """Limits and number of answers, and the decision for "no answer"."""
        return ("no_answer", "no_answer_threshold", "max_answer_tokens", "n_best", "top_k")

    @property
    def output_width(self) -> int:
        """A start and an end logit."""
        return 2

    @property
    def metric(self) -> str:
        """Mean F1 of words with the closest gold answer, in [0, 1]."""
        return "f1"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal answers to 90 % of the questions."""
        return "answer_agreement", 0.9

    @property
    def reads_first_token_only(self) -> bool:
        """Every token may start or end an answer."""
        return False

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        return drop_padding(array, encodings)

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        for encoding in encodings:
            spans = np.array(encoding.offsets)[text_token_indices(encoding, _CONTEXT)]
            if (spans[:, 0] < spans[:, 1]).any():
                return None
        return "the context has no tokens"

    def with_options(self, /, **options: Any) -> Self:
        """Return the task with other options, see `Task.with_options`; `no_answer_threshold` implies `no_answer`."""
        implied = {"no_answer": True} if "no_answer_threshold" in options else {}
        return super().with_options(**(implied | options))

    def decode(self, outputs: Outputs) -> Result:
        """Find the best spans from the start and end logits [tokens, 2] of each window."""
        context = outputs.input.text_pair or ""
        spans = self._candidates(outputs, context)
        null = _null_score(outputs)
        no_answer_score = null - spans[0].score
        if self.no_answer:
            spans = [*spans, _Span(null, 0, 0)]
        probabilities = softmax(np.array([span.score for span in spans]))
        answers = [
            Answer(context[span.start : span.end], float(probability), span.start, span.end)
            for span, probability in zip(spans, probabilities, strict=True)
        ]
        if self.no_answer:  # the threshold alone decides between the best span and "no answer"
            empty = answers.pop()
            if no_answer_score > self.no_answer_threshold:
                answers.insert(0, empty)
            else:
                answers.insert(max(1, sum(answer.score >= empty.score for answer in answers)), empty)
        return Answers(tuple(answers[: self.top_k]), no_answer_score, outputs.arrays, self.top_k == 1)

    def _candidates(self, outputs: Outputs, context: str) -> list[_Span]:
        """Return the `n_best` spans of all windows with distinct texts, best first; at least one."""
        best: dict[str, _Span] = {}
        num_shared = window_overlap(len(outputs.encodings[0]))
        windows = zip(outputs.encodings, outputs.arrays, kept_token_indices(outputs, _CONTEXT), strict=True)
        for encoding, logits, kept in windows:
            for text, span in self._best_of_window(encoding, logits, kept, num_shared, context).items():
                if text not in best or span.score > best[text].score:
                    best[text] = span
        return sorted(best.values(), key=lambda span: -span.score)[: self.n_best]

    def _best_of_window(
        self, encoding: Encoding, logits: FloatArray, kept: NDArray[np.int64], num_shared: int, context: str
    ) -> dict[str, _Span]:
        """Return the `n_best` non-empty spans that begin at one of the tokens `kept`, by text.

        The tokens before these are kept of the window before, which has the first `num_shared` tokens, too. Spans that
        begin there and end behind that window are spans of this one.
        """
        best: dict[str, _Span] = {}
        if not len(kept):
            return best
        offsets, tokens = encoding.offsets, text_token_indices(encoding, _CONTEXT)
        first, last = int(tokens[0]), int(tokens[-1])
        starts = np.arange(first, int(kept[-1]) + 1)
        max_length = min(self.max_answer_tokens, last - first + 1)
        ends = starts[:, None] + np.arange(max_length)
        is_span = (ends <= last) & ((starts[:, None] >= kept[0]) | (ends >= first + num_shared))
        scores = np.where(is_span, logits[starts, 0][:, None] + logits[np.minimum(ends, last), 1], -np.inf)
        for index in np.argsort(-scores, axis=None, kind="stable"):
            i, j = divmod(int(index), max_length)
            if len(best) == self.n_best or not is_span[i, j]:
                break
            start, end = offsets[starts[i]][0], offsets[ends[i, j]][1]
            span = _Span(float(scores[i, j]), first_visible(context, start, end), end)
            if text := context[span.start : span.end]:
                best.setdefault(text, span)
        return best

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        return (TextInput(record.text("question"), record.text("context")),)

    def example(self, record: Record) -> Example:
        """Convert a row with a question, its context and the gold answers: their texts and first characters.

        Without gold answers the question is unanswerable, which needs `no_answer`.
        """
        answers = record.answers()
        if not answers and not self.no_answer:
            raise DataError(
                f"{record.where}: the question has no answer, but the model always gives one; evaluate with "
                "--no-answer, or remove such questions"
            )
        return Example(self.inputs(record), answers)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute SQuAD's F1 and exact match in [0, 1].

        With `no_answer`, also compute the share of questions that are rightly answered or left unanswered, the
        `no_answer_threshold` that gives the best F1, and this F1.
        """
        gold = [[text for text, _ in example.target] for example in examples]
        best = [self._best_span(output) for output in outputs]
        predicted = ["" if self.no_answer and score > self.no_answer_threshold else text for text, score in best]
        metrics = {
            "f1": _mean([answer_f1(text, answers) for text, answers in zip(predicted, gold, strict=True)]),
            "exact_match": _mean([exact_match(text, answers) for text, answers in zip(predicted, gold, strict=True)]),
        }
        if not self.no_answer:
            return metrics
        answerable = np.array([bool(answers) for answers in gold])
        overlaps = np.array([answer_f1(text, answers) for (text, _), answers in zip(best, gold, strict=True)])
        threshold, f1 = best_threshold(np.array([score for _, score in best]), overlaps, answerable)
        right = np.array([not text for text in predicted]) == ~answerable
        return {**metrics, "answerability_accuracy": float(right.mean()), "best_threshold": threshold, "best_f1": f1}

    def with_tuned_threshold(self, metrics: Mapping[str, float]) -> Self:
        """Return the task with the `no_answer_threshold` that gave the best F1."""
        return replace(self, no_answer_threshold=metrics["best_threshold"]) if self.no_answer else self

    def _best_span(self, outputs: Outputs) -> tuple[str, float]:
        """Return the best span's text, and the score of "no answer" minus the span's."""
        context = outputs.input.text_pair or ""
        best = self._candidates(outputs, context)[0]
        return context[best.start : best.end], _null_score(outputs) - best.score

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        pairs = [
            (self.decode(found), self.decode(expected)) for found, expected in zip(outputs, reference, strict=True)
        ]
        same = [
            (x.start, x.end) == (y.start, y.end) for x, y in pairs if isinstance(x, Answers) and isinstance(y, Answers)
        ]
        drift = np.concatenate(
            [np.abs(found.flat - expected.flat) for found, expected in zip(outputs, reference, strict=True)]
        )
        return {"answer_agreement": _mean(same), "mean_abs_logit_drift": float(drift.mean())}

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Use the first words of each text as a question about the following five texts."""
        return [
            TextInput(" ".join(text.split()[:8]), " ".join(texts[(i + step) % len(texts)] for step in (1, 2, 3, 4, 5)))
            for i, text in enumerate(texts)
        ]


def _null_score(outputs: Outputs) -> float:
    """Return the score of "no answer": the smallest sum of the first token's two logits over the windows."""
    return min(float(logits[0].sum()) for logits in outputs.arrays)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
