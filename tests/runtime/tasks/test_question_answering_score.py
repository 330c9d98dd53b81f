"""question-answering: metrics, compared with SQuAD's official rules, and labelled examples."""

import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime import Model
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Outputs, QuestionAnswering, TextInput

from ..task_models import random_model
from .reading_data import OR_NONE, SPANS, words_of


def squad_normal(text: str) -> list[str]:
    """Normalize a text as evaluate-v2.0.py of SQuAD does."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def squad_scores(found: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1."""

    def f1(answer: str) -> float:
        one, other = squad_normal(found), squad_normal(answer)
        shared = sum((Counter(one) & Counter(other)).values())
        if not one or not other:
            return float(one == other)
        return 2 * shared / (len(one) + len(other))

    gold = list(answers) or [""]
    return float(any(squad_normal(found) == squad_normal(answer) for answer in gold)), max(map(f1, gold))


def questions(task: QuestionAnswering, model: Model, count: int = 60) -> tuple[list[Outputs], list[Example]]:
    """Make questions on random texts, with the model's own predictions, other spans or nothing as gold answers."""
    generator, outputs, examples = random.Random(0), [], []
    for number in range(count):
        context = words_of(12, number)
        value = TextInput(words_of(3, number), context)
        (output,) = model.outputs([value])
        words = context.split()
        first = generator.randrange(len(words))
        texts = [" ".join(words[first : first + generator.randint(1, 4)]), words[generator.randrange(len(words))]]
        if generator.random() < 0.5:
            texts[0] = replace(task, no_answer_threshold=np.inf).decode(output).answer  # type: ignore[attr-defined]
        if task.no_answer and generator.random() < 0.5:
            texts = []
        outputs.append(output)
        examples.append(Example((value,), [(text, context.index(text)) for text in texts]))
    return outputs, examples


@pytest.mark.parametrize("task", [SPANS, OR_NONE, replace(OR_NONE, no_answer_threshold=3.0)])
def test_score_equals_official_squad_rules(task: QuestionAnswering, toy_vocab: Path) -> None:
    outputs, examples = questions(task, random_model(task, toy_vocab, 40, 2))
    given = [task.decode(output).answer for output in outputs]  # type: ignore[attr-defined]
    gold = [[text for text, _ in example.target] for example in examples]
    exact, f1 = np.mean([squad_scores(*pair) for pair in zip(given, gold, strict=True)], axis=0)
    found = task.score(outputs, examples)
    assert (found["exact_match"], found["f1"]) == (pytest.approx(exact), pytest.approx(f1))
    assert 0.1 < exact < f1 < 0.9
    if task.no_answer:
        assert found["answerability_accuracy"] == pytest.approx(
            np.mean([bool(text) == bool(right) for text, right in zip(given, gold, strict=True)])
        )


@pytest.mark.parametrize("seed", range(2))
def test_best_threshold_maximizes_f1(seed: int, toy_vocab: Path) -> None:
    outputs, examples = questions(OR_NONE, random_model(OR_NONE, toy_vocab, 40, 2), count=40 + seed)
    found = OR_NONE.score(outputs, examples)

    def f1(threshold: float) -> float:
        return replace(OR_NONE, no_answer_threshold=threshold).score(outputs, examples)["f1"]

    assert f1(found["best_threshold"]) == pytest.approx(found["best_f1"])
    assert max(map(f1, np.linspace(-30, 30, 101))) <= found["best_f1"] + 1e-9
    assert found["best_f1"] > found["f1"]


def record(**fields: Any) -> Record:
    return Record(fields, Path("squad.json"), location="question 7")


def test_row_becomes_example_with_gold_answers() -> None:
    answers = [{"text": "bank", "answer_start": 4}]
    example = SPANS.example(record(question="what?", context="the bank", answers=answers))
    assert example == Example((TextInput("what?", "the bank"),), [("bank", 4)])
    empty = record(question="what?", context="the bank", answers=[])
    assert OR_NONE.example(empty).target == []
    with pytest.raises(DataError, match=r"^squad\.json: question 7: the question has no answer"):
        SPANS.example(empty)
