"""Pairs that are joined from texts tokenized once: equal to what the tokenizer makes of the pair."""

from pathlib import Path

import numpy as np
import pytest

from bert_models.tokenizer_files import read_tokenizer
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer, pad
from bert_runtime.tokenization.pair_joining import PairJoiner

from ..models.toy_tokenizers import (
    ALBERT_OPTIONS,
    MPNET_TOKENS,
    nasty,
    train_bpe,
    train_sentencepiece,
    train_wordpiece,
)

KINDS = ("bert", "mpnet", "roberta", "albert", "xlm-roberta")
"""A family of each kind of tokenizer, and of special tokens in a pair."""


@pytest.fixture(scope="module", params=KINDS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(family: str, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp(family)
    if family in ("bert", "mpnet"):
        train_wordpiece(folder, *([MPNET_TOKENS] if family == "mpnet" else []))
    elif family == "roberta":
        train_bpe(folder)
    elif family == "albert":
        train_sentencepiece(folder / "spiece.model", **ALBERT_OPTIONS)
    else:
        train_sentencepiece(folder / "sentencepiece.bpe.model")
    return TextTokenizer(read_tokenizer(folder, family), 2_000, 0)


def test_joined_pairs_equal_tokenized_pairs(tokenizer: TextTokenizer, family: str) -> None:
    texts, joiner = nasty(family), tokenizer.pair_joiner
    others = [*texts[1:], texts[0]]
    alone = [joiner.text_ids(windows[0]) for windows in tokenizer.encode(list(map(TextInput, texts)))]
    expected = tokenizer.encode(list(map(TextInput, texts, others)))
    for index, (windows, text) in enumerate(zip(expected, texts, strict=True)):
        pair = joiner.join(alone[index], alone[(index + 1) % len(texts)])
        assert (pair.ids, len(pair)) == (windows[0].ids, len(windows[0])), text
        assert pair.type_ids == windows[0].type_ids, text
    room = tokenizer.max_tokens - joiner.max_text_tokens
    assert room == len(tokenizer.encode([TextInput("", "")])[0][0])


def test_joined_pairs_are_padded_like_encodings(tokenizer: TextTokenizer) -> None:
    inputs = [TextInput("Where is it?", "a card"), TextInput("My card", "has left our warehouse on Monday")]
    joiner = tokenizer.pair_joiner
    pairs = []
    for value in inputs:
        first, second = (joiner.text_ids(windows[0]) for windows in tokenizer.encode(list(map(TextInput, value))))
        pairs.append(joiner.join(first, second))
    found, expected = (
        pad(encodings, tokenizer.pad_token_id) for encodings in (pairs, [w[0] for w in tokenizer.encode(inputs)])
    )
    for array, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, reference)


@pytest.mark.parametrize(("direction", "kept"), [("right", [1, 2]), ("left", [3, 4])])
def test_the_side_that_truncation_keeps_is_the_tokenizers(toy_vocab: Path, direction: str, kept: list[int]) -> None:
    tokenizer = read_tokenizer(toy_vocab, "bert")
    tokenizer.enable_truncation(16, direction=direction)
    joiner = PairJoiner(tokenizer, 16)
    assert joiner.truncate([1, 2, 3, 4], 2) == kept
    assert joiner.truncate([1, 2, 3, 4], 9) == [1, 2, 3, 4]


def test_a_truncated_pair_says_so(tokenizer: TextTokenizer) -> None:
    joiner = tokenizer.pair_joiner
    assert not joiner.join([7], [8]).overflowing
    assert joiner.join([7], [8], truncated=True).overflowing
