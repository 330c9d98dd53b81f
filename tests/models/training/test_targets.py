"""Targets of every task's objective: which tokens of a window have which label."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_models import open_checkpoint
from bert_models.distillation.run import UnlabelledObjective, unlabelled_examples
from bert_models.training.objectives import build_objective, stack_targets
from bert_runtime.records import Record
from bert_runtime.tasks import (
    FillMask,
    QuestionAnswering,
    ReplacedTokenDetection,
    Task,
    TokenClassification,
)
from bert_runtime.tokenization import TextTokenizer


@pytest.fixture
def tokenizer_for(classifier_checkpoint: Path) -> Callable[[Task, int], TextTokenizer]:
    return lambda task, length: open_checkpoint(classifier_checkpoint).text_tokenizer(length, task.windows)


def first_target(task: Task, row: dict[str, Any], tokenizer: TextTokenizer) -> list[tuple[list[str], list[Any]]]:
    """Tokens and target of every window of one example."""
    example = task.example(Record(row, Path("x.jsonl"), 1))
    (windows,) = tokenizer.encode(example.inputs)
    objective = build_objective(task)
    return [(window.tokens, objective.target(example, window, tokenizer).tolist()) for window in windows]


def test_label_is_on_the_first_token_of_a_word(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    row = {"tokens": ["my", "cardz", "bank"], "tags": ["O", "B-x", "O"]}
    ((tokens, target),) = first_target(task, row, tokenizer_for(task, 64))
    assert tokens == ["[CLS]", "my", "card", "##z", "bank", "[SEP]"]
    assert target == [-100, 0, 1, -100, 0, -100]


def test_word_behind_a_dropped_character_is_labelled_as_it_is_scored(
    tokenizer_for: Callable[[Task, int], TextTokenizer],
) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    row = {"tokens": ["\u200fcardz", "\u200bcardz", "\ufeff", "bank"], "tags": ["B-x", "B-x", "O", "O"]}
    ((tokens, target),) = first_target(task, row, tokenizer_for(task, 64))
    assert tokens == ["[CLS]", "card", "##z", "card", "##z", "bank", "[SEP]"]
    assert target == [-100, 1, -100, 1, -100, 0, -100]


def test_text_without_tokens_has_no_labels(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    for task, tag in ((TokenClassification(labels=("O", "B-x")), "B-x"), (ReplacedTokenDetection(), "replaced")):
        row = {"tokens": ["\u200b"], "tags": [tag]}
        assert first_target(task, row, tokenizer_for(task, 64)) == [(["[CLS]", "[SEP]"], [-100, -100])]


def test_a_teacher_is_asked_about_the_first_token_of_every_word(
    tokenizer_for: Callable[[Task, int], TextTokenizer],
) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    tokenizer, objective = tokenizer_for(task, 64), UnlabelledObjective(task)
    rows = [{"tokens": ["my", "cardz", "bank"]}, {"text": "my cardz bank"}]
    words, text = unlabelled_examples(task, tokenizer, [Record(row, Path("x.jsonl"), 1) for row in rows])
    ((window,),) = tokenizer.encode(words.inputs)
    assert objective.target(words, window, tokenizer).tolist() == [-100, 0, 0, -100, 0, -100]
    assert objective.target(text, window, tokenizer).tolist() == [-100, 0, 0, 0, 0, -100]  # its words are not known


def test_window_has_no_label_for_a_word_that_began_before(
    tokenizer_for: Callable[[Task, int], TextTokenizer],
) -> None:
    task = TokenClassification(labels=("O", "B-x"))
    row = {"tokens": ["zebra", "card"] * 12, "tags": ["B-x", "O"] * 12}
    windows = first_target(task, row, tokenizer_for(task, 16))
    assert len(windows) > 3
    for tokens, target in windows:
        labelled = {token: label for token, label in zip(tokens, target, strict=True) if label != -100}
        assert labelled.keys() <= {"z", "card"}
        assert all(label == (token == "z") for token, label in labelled.items())


def test_every_token_of_a_replaced_word_is_labelled(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = ReplacedTokenDetection()
    row = {"tokens": ["my", "cardz", "bank"], "tags": ["original", "replaced", "original"]}
    ((_, target),) = first_target(task, row, tokenizer_for(task, 64))
    assert target == [-100, 0, 1, 1, 0, -100]


def test_answer_span_is_in_windows_that_contain_it(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = QuestionAnswering()
    context = "hello my card is late. " * 8 + "see the bank now"
    row = {
        "question": "where",
        "context": context,
        "answers": [{"text": "the bank", "answer_start": context.index("the bank")}],
    }
    windows = first_target(task, row, tokenizer_for(task, 24))
    assert len(windows) > 2
    for tokens, (start, end) in windows:
        assert tokens[start : end + 1] == (["the", "bank"] if "bank" in tokens else ["[CLS]"])


def test_mask_targets_are_the_ids_of_the_words(tokenizer_for: Callable[[Task, int], TextTokenizer]) -> None:
    task = FillMask(mask_token="[MASK]", mask_token_id=4)
    tokenizer = tokenizer_for(task, 64)
    ((tokens, target),) = first_target(task, {"text": "[MASK] is [MASK]", "labels": ["card", "lost"]}, tokenizer)
    assert tokens == ["[CLS]", "[MASK]", "is", "[MASK]", "[SEP]"]
    assert target == [-100, *tokenizer.token_ids("card"), -100, *tokenizer.token_ids("lost"), -100]


def test_shorter_targets_are_padded() -> None:
    assert stack_targets([np.array([1, 2, 3]), np.array([4])]).tolist() == [[1, 2, 3], [4, -100, -100]]
    assert stack_targets([np.array(2), np.array(1)]).tolist() == [2, 1]
