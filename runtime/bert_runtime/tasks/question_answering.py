"""question-answering: the span of a context that answers a question, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import DataError
from bert_runtime.metrics import answer_f1, best_threshold, exact_match
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, Outputs, Result, Task, TextInput, WindowedText
from bert_runtime.tasks.checks import check_flag, check_int, check_number
from bert_runtime.tasks.tokens import drop_padding, kept_token_indices, text_token_indices

__all__ = ["Answer", "Answers", "QuestionAnswering", "answer_token_span"]

_CONTEXT = 1
"""The context is the second text of the pair."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context; empty, from 0 to 0, for the answer that there is none."""

    answer: str
    score: float
    """Probability among the candidates, in [0, 1]."""
    start: int
    """Its first character."""
    end: int
    """The character after its last."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape of one answer."""
        return {"answer": self.answer, "score": self.score, "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, eq=False)
class Answers(Result):
    """The best answers to one question, best first."""

    answers: tuple[Answer, ...]
    no_answer_score: float
    """By how much the score of "no answer" exceeds that of the best span, in logits."""
    logits: tuple[FloatArray, ...] = field(repr=False)
    """The model's raw outputs for each window: start and end [tokens, 2]."""
    single: bool = field(default=True, repr=False)

    @property
    def answer(self) -> str:
        """The best answer's text; empty where the question has none."""
        return self.answers[0].answer

    @property
    def score(self) -> float:
        """The best answer's probability among the candidates."""
        return self.answers[0].score

    @property
    def start(self) -> int:
        """The best answer's first character."""
        return self.answers[0].start

    @property
    def end(self) -> int:
        """The character after the best answer's last."""
        return self.answers[0].end

    def to_dict(self) -> Any:
        return self.answers[0].to_dict() if self.single else [each.to_dict() for each in self.answers]

    def summary(self) -> str:
        return ", ".join(f"{each.answer!r} {each.score:.4f}" for each in self.answers)


class _Span(NamedTuple):
    """A candidate: its summed logits and its characters."""

    score: float
    start: int
    end: int


def answer_token_span(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """The first and the last token of the characters `start` to `end` of the context, (0, 0) where a window lacks them.

    Place 0 is the first special token, which stands for "no answer" (Devlin et al., arXiv:1810.04805, section 4.3).
    """
    places = text_token_indices(encoding, _CONTEXT)
    offsets = np.array(encoding.offsets)[places]
    inside = places[(offsets[:, 1] > start) & (offsets[:, 0] < end)]
    if not len(inside) or offsets[0, 0] > start or offsets[-1, 1] < end:
        return 0, 0
    return int(inside[0]), int(inside[-1])


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Where an answer starts and ends, for every token of the context.

    Candidates and their scores are those of BERT's recipe for SQuAD: the sum of a start and an end logit, a start being
    taken from the window in which it has most context; probabilities are a softmax over the best candidates.
    """

    no_answer: bool = False
    """Whether a question may have no answer in its context (SQuAD 2.0)."""
    no_answer_threshold: float = 0.0
    """The answer is "none" where `Answers.no_answer_score` exceeds this; `evaluate` finds the best value."""
    max_answer_tokens: int = 30
    n_best: int = 20
    """How many candidates probabilities are shared among."""
    top_k: int = 1
    """How many answers to give."""

    name: ClassVar[str] = "question-answering"
    output: ClassVar[str] = "logits"
    windows: ClassVar[WindowedText | None] = "text_pair"

    def __post_init__(self) -> None:
        check_flag("no_answer", self.no_answer)
        check_number("no_answer_threshold", self.no_answer_threshold)
        for name in ("max_answer_tokens", "n_best", "top_k"):
            check_int(name, getattr(self, name), least=1)
        if self.top_k > self.n_best:
            raise ValueError(f"top_k must be at most n_best, {self.n_best}, found {self.top_k}")

    @property
    def options(self) -> tuple[str, ...]:
        """Which spans are answers, and how many are given."""
        return ("no_answer", "no_answer_threshold", "max_answer_tokens", "n_best", "top_k")

    @property
    def metric(self) -> str:
        """Mean overlap of words with the nearest right answer, in [0, 1]."""
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

    def with_options(self, **options: Any) -> Self:
        """See `Task.with_options`; who sets the threshold of "no answer" wants it to be one."""
        implied = {"no_answer": True} if "no_answer_threshold" in options else {}
        return super().with_options(**(implied | options))

    def decode(self, outputs: Outputs) -> Result:
        """Start and end logits [length, 2] of each window → the answers."""
        context = outputs.input.text_pair or ""
        spans = self._candidates(outputs, context)
        null = min(float(row[0].sum()) for row in outputs.arrays)
        no_answer_score = null - spans[0].score
        if self.no_answer:
            spans = [*spans, _Span(null, 0, 0)]
        chances = softmax(np.array([span.score for span in spans]))
        answers = [
            Answer(context[span.start : span.end], float(chance), span.start, span.end)
            for span, chance in zip(spans, chances, strict=True)
        ]
        if self.no_answer:  # the threshold alone decides between the best span and none
            none = answers.pop()
            place = 0 if no_answer_score > self.no_answer_threshold else 1
            below = sum(each.score >= none.score for each in answers)
            answers.insert(max(place, below) if place else 0, none)
        return Answers(tuple(answers[: self.top_k]), no_answer_score, outputs.arrays, self.top_k == 1)

    def _candidates(self, outputs: Outputs, context: str) -> list[_Span]:
        """The best spans of all windows, each text once, best first; at least one."""
        best: dict[str, _Span] = {}
        for encoding, row, kept in zip(
            outputs.encodings, outputs.arrays, kept_token_indices(outputs, _CONTEXT), strict=True
        ):
            for text, span in self._best_of_window(encoding, row, kept, context).items():
                if text not in best or span.score > best[text].score:
                    best[text] = span
        return sorted(best.values(), key=lambda span: -span.score)[: self.n_best]

    def _best_of_window(
        self, encoding: Encoding, row: FloatArray, starts: NDArray[np.int64], context: str
    ) -> dict[str, _Span]:
        """The best spans that begin at one of the tokens `starts`, by their texts, which are not empty."""
        best: dict[str, _Span] = {}
        if not len(starts):
            return best
        offsets, last = encoding.offsets, int(text_token_indices(encoding, _CONTEXT)[-1])
        longest = min(self.max_answer_tokens, last - int(starts[0]) + 1)
        ends = starts[:, None] + np.arange(longest)
        scores = np.where(ends <= last, row[starts, 0][:, None] + row[np.minimum(ends, last), 1], -np.inf)
        for place in np.argsort(-scores, axis=None, kind="stable"):
            i, j = divmod(int(place), longest)
            if len(best) == self.n_best or ends[i, j] > last:
                break
            span = _Span(float(scores[i, j]), offsets[starts[i]][0], offsets[ends[i, j]][1])
            if text := context[span.start : span.end]:
                best.setdefault(text, span)
        return best

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        return (TextInput(record.text("question"), record.text("context")),)

    def example(self, record: Record) -> Example:
        """A question, its context and the right answers: text and first character of each, none if there is none."""
        answers = record.answers()
        if not answers and not self.no_answer:
            raise DataError(
                f"{record.where}: the question has no answer, and the model always gives one; evaluate with "
                "--no-answer, or leave such questions out"
            )
        return Example(self.inputs(record), answers)

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """SQuAD's metrics in [0, 1]; with `no_answer`, also the threshold that would give the best F1, and this F1."""
        gold = [[text for text, _ in example.target] for example in examples]
        results = [self._answered(each) for each in outputs]
        given = ["" if self.no_answer and score > self.no_answer_threshold else text for text, score in results]
        metrics = {
            "f1": _mean([answer_f1(*each) for each in zip(given, gold, strict=True)]),
            "exact_match": _mean([exact_match(*each) for each in zip(given, gold, strict=True)]),
        }
        if not self.no_answer:
            return metrics
        answerable = np.array([bool(each) for each in gold])
        overlaps = np.array([answer_f1(text, right) for (text, _), right in zip(results, gold, strict=True)])
        threshold, f1 = best_threshold(np.array([score for _, score in results]), overlaps, answerable)
        right = np.array([not text for text in given]) == ~answerable
        return {**metrics, "answerability_accuracy": float(right.mean()), "best_threshold": threshold, "best_f1": f1}

    def with_tuned_threshold(self, metrics: Mapping[str, float]) -> Self:
        """With the threshold of the best F1."""
        return replace(self, no_answer_threshold=metrics["best_threshold"]) if self.no_answer else self

    def _answered(self, outputs: Outputs) -> tuple[str, float]:
        """The best span's text, and the score of "no answer" against it."""
        best = self._candidates(outputs, context := outputs.input.text_pair or "")[0]
        null = min(float(row[0].sum()) for row in outputs.arrays)
        return context[best.start : best.end], null - best.score

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        pairs = [(self.decode(each), self.decode(other)) for each, other in zip(outputs, reference, strict=True)]
        same = [
            (x.start, x.end) == (y.start, y.end) for x, y in pairs if isinstance(x, Answers) and isinstance(y, Answers)
        ]
        drift = np.concatenate([np.abs(each.flat - other.flat) for each, other in zip(outputs, reference, strict=True)])
        return {"answer_agreement": _mean(same), "mean_abs_logit_drift": float(drift.mean())}

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """The first words of each text as a question about those that follow."""
        return [
            TextInput(" ".join(text.split()[:8]), " ".join(texts[(i + step) % len(texts)] for step in (1, 2, 3, 4, 5)))
            for i, text in enumerate(texts)
        ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
