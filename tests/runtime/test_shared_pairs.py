"""Pairs whose texts are tokenized once: truncated and cut into windows as the tokenizer itself does it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bert_models.tokenizer_files import read_tokenizer
from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.tokenization.shared_pairs import encode_pairs

from ..models.toy_tokenizers import (
    ALBERT_OPTIONS,
    FAMILIES,
    MPNET_TOKENS,
    train_bpe,
    train_sentencepiece,
    train_wordpiece,
)

MAX_TOKENS = 24
LENGTHS = (0, 1, 7, 9, 10, 11, 12, 19, 20, 21, 22, 30, 40, 41, 63)

Make = Callable[..., TextTokenizer]


@pytest.fixture(scope="module", params=FAMILIES)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A function that makes the family's tokenizer, with windows or without."""
    family, folder = str(request.param), tmp_path_factory.mktemp("tokenizer")
    if family in ("bert", "distilbert", "electra", "ernie", "mpnet", "nomic_bert"):
        train_wordpiece(folder, *([MPNET_TOKENS] if family == "mpnet" else []))
    elif family == "roberta":
        train_bpe(folder)
    elif family == "albert":
        train_sentencepiece(folder / "spiece.model", **ALBERT_OPTIONS)
    else:
        train_sentencepiece(folder / "sentencepiece.bpe.model")
    source = read_tokenizer(folder, family).to_str()

    def tokenizer(windows: bool = False, side: str = "right") -> TextTokenizer:
        copy = Tokenizer.from_str(source)
        copy.enable_truncation(MAX_TOKENS, direction=side)
        return TextTokenizer(copy, MAX_TOKENS, 0, "text_pair" if windows else None)

    return tokenizer


def text_of(length: int) -> str:
    """Return a text of `length` digits and letters, a token each in every vocabulary but for a few."""
    return " ".join("abcdefghij0123456789"[(7 * index) % 20] for index in range(length))


PAIRS = [TextInput(text_of(first), text_of(second)) for first in LENGTHS for second in LENGTHS]


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncated_pairs_equal_those_of_the_tokenizer(make: Make, side: str) -> None:
    tokenizer = make(side=side)
    found = encode_pairs(tokenizer, PAIRS, windows=False)
    for pair, (window,), (expected,) in zip(PAIRS, found, tokenizer.encode(PAIRS), strict=True):
        assert (window.ids, window.type_ids) == (expected.ids, expected.type_ids), pair
        assert bool(window.overflowing) == bool(expected.overflowing), pair


def test_windows_equal_those_of_the_tokenizer(make: Make) -> None:
    pairs = [TextInput(text_of(first), text_of(second)) for first in (1, 3, 4) for second in LENGTHS]
    found = encode_pairs(make(), pairs, windows=True)
    for pair, windows, expected in zip(pairs, found, make(windows=True).encode(pairs), strict=True):
        assert [window.ids for window in windows] == [window.ids for window in expected], pair
        assert not windows[0].overflowing, pair


def test_every_token_of_a_document_is_in_a_window(make: Make) -> None:
    """Also beside a query that is too long, of which half of a window is kept."""
    tokenizer = make()
    for length in LENGTHS[1:]:
        pair = TextInput(text_of(50), text_of(length))
        (windows,) = encode_pairs(tokenizer, [pair], windows=True)
        assert all(len(window) <= MAX_TOKENS for window in windows)
        (document,) = tokenizer.pair_joiner.all_ids([text_of(length)])
        found = [window.second for window in windows]  # type: ignore[attr-defined]
        assert set(document) == {token for window in found for token in window}
        assert found[-1][-1] == document[-1]
        assert all(window.overflowing for window in windows)


def test_a_long_query_keeps_the_room_that_a_short_document_leaves(make: Make) -> None:
    tokenizer = make()
    query, document = tokenizer.pair_joiner.all_ids([text_of(50), text_of(3)])
    ((window,),) = encode_pairs(tokenizer, [TextInput(text_of(50), text_of(3))], windows=True)
    assert (len(window), bool(window.overflowing)) == (MAX_TOKENS, True)
    assert window.second == document  # type: ignore[attr-defined]
    assert window.first == query[: tokenizer.pair_joiner.max_text_tokens - len(document)]  # type: ignore[attr-defined]


def test_long_texts_are_shortened_before_they_are_tokenized(toy_vocab: Path) -> None:
    tokenizer = TextTokenizer(read_tokenizer(toy_vocab, "bert"), MAX_TOKENS, 0)
    pair = TextInput("where is my card", "the card is lost " * 50_000)
    (found,), (expected,) = encode_pairs(tokenizer, [pair], windows=False), tokenizer.encode([pair])
    assert found[0].ids == expected[0].ids
    with pytest.raises(InputError, match=r'input 4: expected at most 1,000,000 characters.*long_documents="truncate"'):
        encode_pairs(tokenizer, [TextInput("a", "b" * 1_000_001)], 4, windows=True)


def test_bad_pairs_are_named(toy_vocab: Path) -> None:
    tokenizer = TextTokenizer(read_tokenizer(toy_vocab, "bert"), MAX_TOKENS, 0)
    assert encode_pairs(tokenizer, [], windows=True) == []
    with pytest.raises(InputError, match="input 1: expected a query and a document, found one text"):
        encode_pairs(tokenizer, [TextInput("a", "b"), TextInput("a")], windows=True)
    with pytest.raises(InputError, match=r"input 6: the text holds a lone surrogate \(U\+D800\)"):
        encode_pairs(tokenizer, [TextInput("a", "b"), TextInput("a", "\ud800")], 5, windows=False)
