"""Judge answers to questions, with the metrics of SQuAD."""

from collections.abc import Sequence

import numpy as np

from bert_export.report.judgements.base import Decision, Judgement, Table
from bert_runtime.metrics import answer_f1, exact_match
from bert_runtime.tasks import Answers, Example, Outputs, QuestionAnswering

__all__ = ["judge_answers"]

_NO_ANSWER = "no answer"
_ROWS = ("an answer", _NO_ANSWER)
_OUTCOMES = ("exact", "partly right", "wrong", _NO_ANSWER)


def judge_answers(task: QuestionAnswering, outputs: Sequence[Outputs], examples: Sequence[Example]) -> Judgement:
    """Judge the best answer to each question; it is correct if it is an exact match."""
    with_runner_up = task.with_options(top_k=min(2, task.n_best))
    decisions, rows, columns = [], [], []
    for output, example in zip(outputs, examples, strict=True):
        answers = with_runner_up.decode(output)
        assert isinstance(answers, Answers)
        gold = [text for text, _ in example.target]
        column = _outcome(answers.answer, gold)
        question = output.input.text
        decisions.append(
            Decision(
                text=f"{question} | {output.input.text_pair}",
                span=(0, len(question)),
                expected=" / ".join(dict.fromkeys(gold)) or _NO_ANSWER,
                predicted=answers.answer or _NO_ANSWER,
                correct=bool(exact_match(answers.answer, gold)),
                probability=answers.score,
                margin=_margin(answers),
            )
        )
        rows.append(int(not gold))
        columns.append(column)
    return Judgement(
        decisions=tuple(decisions),
        table=Table.count(_ROWS[: 1 + task.no_answer], _OUTCOMES[: 3 + task.no_answer], rows, columns),
        probabilities=np.array([decision.probability for decision in decisions]),
        outcomes=np.array([decision.correct for decision in decisions], dtype=bool),
    )


def _outcome(answer: str, gold: Sequence[str]) -> int:
    """Return the index of an answer's outcome among `_OUTCOMES`."""
    if not answer:
        return 3
    if exact_match(answer, gold):
        return 0
    return 1 if answer_f1(answer, gold) > 0 else 2


def _margin(answers: Answers) -> float | None:
    """Return how much more probable the best answer is than the next one; `None` without a next one.

    It is negative where the threshold for "no answer", not the probability, decided.
    """
    best, *others = answers.answers
    return best.score - others[0].score if others else None
