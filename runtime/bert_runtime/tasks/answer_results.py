"""Results of question answering."""

from dataclasses import dataclass, field
from typing import Any

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks.values import Result

__all__ = ["Answer", "Answers"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context; the empty span 0 to 0 says that the context has no answer.

    As JSON: `{"answer": "Paris", "score": 0.94, "start": 11, "end": 16}`.
    """

    answer: str
    """The span's text."""
    score: float
    """Probability of the answer, in [0, 1]: a softmax over the `n_best` candidates."""
    start: int
    """Index of the first character in the context."""
    end: int
    """Index after the last character."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON object, shaped as in the Hugging Face pipeline."""
        return {"answer": self.answer, "score": self.score, "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, eq=False)
class Answers(Result):
    """The best answers to one question.

    As JSON: the best answer as an object for `top_k=1`, else a list of answers.
    """

    answers: tuple[Answer, ...]
    """The answers, best first; at least one."""
    no_answer_score: float
    """Score of "no answer" minus that of the best span, in logits; compared with `no_answer_threshold`."""
    logits: tuple[FloatArray, ...] = field(repr=False)
    """Raw start and end logits for each window: float32 [tokens, 2]."""
    single: bool = field(default=True, repr=False)
    """Whether `to_dict` returns the best answer alone."""

    @property
    def answer(self) -> str:
        """Text of the best answer; empty where the question has none."""
        return self.answers[0].answer

    @property
    def score(self) -> float:
        """Probability of the best answer among the candidates."""
        return self.answers[0].score

    @property
    def start(self) -> int:
        """Index of the best answer's first character."""
        return self.answers[0].start

    @property
    def end(self) -> int:
        """Index after the best answer's last character."""
        return self.answers[0].end

    def to_dict(self) -> Any:
        return self.answers[0].to_dict() if self.single else [answer.to_dict() for answer in self.answers]

    def summary(self) -> str:
        return ", ".join(f"{answer.answer!r} {answer.score:.4f}" for answer in self.answers)
