"""question-answering: conversion of gold answers to token spans and back, on SQuAD."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Encoding

from bert_runtime.tasks import TextInput
from bert_runtime.tasks.tokens import answer_token_span

from ..task_models import RandomRunner, random_model, with_runner, wordpiece
from .reading_data import SPANS, VOCABULARIES, paragraphs, real_tokenizer


class TokenizedWindow(NamedTuple):
    """A window, and the offsets of its tokens, `None` for tokens that are not of the context."""

    encoding: Encoding
    offsets: list[tuple[int, int] | None]


def tokenized_windows(windows: Sequence[Encoding]) -> list[TokenizedWindow]:
    return [
        TokenizedWindow(
            encoding,
            [offset if i == 1 else None for offset, i in zip(encoding.offsets, encoding.sequence_ids, strict=True)],
        )
        for encoding in windows
    ]


def check_answer_tokens(
    windows: Sequence[TokenizedWindow], tokens: Sequence[Any], start: int, end: int, *, exact: bool
) -> int:
    """Check `answer_token_span` for every window, and return how many windows contain the answer.

    With `exact`, no token extends beyond the answer.
    """
    wanted = [token for token in tokens if token[1] > start and token[0] < end]
    found = 0
    for encoding, offsets in windows:
        first, last = answer_token_span(encoding, start, end)
        if not all(token in offsets for token in wanted):
            assert (first, last) == (0, 0)
            continue
        assert (offsets[first], offsets[last]) == (wanted[0], wanted[-1])
        assert not exact or (wanted[0][0], wanted[-1][1]) == (start, end)
        found += 1
    return found


@pytest.mark.shared_data
@pytest.mark.parametrize("max_tokens", [64, 384])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_word_spans_round_trip_through_token_spans(vocabulary: str, max_tokens: int, shared_data: Path) -> None:
    tokenizer, generator = real_tokenizer(shared_data / "vocab", vocabulary), random.Random(0)
    model = with_runner(RandomRunner(2), SPANS, tokenizer, max_tokens)
    held = 0
    for context, qas in paragraphs(shared_data)[::20]:
        whole = tokenizer.encode(context, add_special_tokens=False).offsets
        windows = tokenized_windows(model.tokenizer.encode([TextInput(qas[0]["question"], context)])[0])
        words = [match.span() for match in re.finditer(r"\S+", context)]
        for first in range(0, len(words), 3):
            last = min(len(words) - 1, first + generator.randrange(6))
            held += check_answer_tokens(windows, whole, words[first][0], words[last][1], exact=True)
    assert held > 300


@pytest.mark.shared_data
@pytest.mark.parametrize("max_tokens", [64, 384])
def test_squad_answers_round_trip_through_token_spans(max_tokens: int, shared_data: Path) -> None:
    tokenizer = real_tokenizer(shared_data / "vocab", "bert-base-uncased")
    model = with_runner(RandomRunner(2), SPANS, tokenizer, max_tokens)
    counts: Counter[bool] = Counter()
    for context, qas in paragraphs(shared_data)[::4]:
        whole = tokenizer.encode(context, add_special_tokens=False).offsets
        for question in qas:
            windows = tokenized_windows(model.tokenizer.encode([TextInput(question["question"], context)])[0])
            for text, start in {(answer["text"], answer["answer_start"]) for answer in question["answers"]}:
                held = check_answer_tokens(windows, whole, start, start + len(text), exact=False)
                counts[held > 0] += 1
    assert counts[True] > 0.9 * counts.total() > 300


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("late train rain", "train "),
        ("late train rain", " train"),
        ("late train rain", "rai"),
        ("late train\u200b rain", "train\u200b"),
    ],
)
def test_answer_boundaries_need_not_be_token_boundaries(context: str, answer: str, toy_vocab: Path) -> None:
    model = random_model(SPANS, toy_vocab, 64, 2)
    start = context.index(answer)
    (outputs,) = model.outputs([("who", context)])
    (encoding,) = outputs.encodings
    first, last = answer_token_span(encoding, start, start + len(answer))
    assert first == last > 0
    assert encoding.tokens[first] in ("train", "late", "rain")


def test_windows_without_the_whole_answer_give_the_first_token(toy_vocab: Path) -> None:
    model = random_model(SPANS, toy_vocab, 16, 2)
    context = "late bank " * 10 + "train book film " + "rain " * 20
    start, end = context.index("train"), context.index("film") + len("film")
    (outputs,) = model.outputs([("who", context)])
    whole = wordpiece(toy_vocab).encode(context, add_special_tokens=False).offsets
    windows = tokenized_windows(outputs.encodings)
    assert 0 < check_answer_tokens(windows, whole, start, end, exact=True) < len(windows)
