"""Token ids from the memory of words: those of the library, or left to it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Encoding, Tokenizer, pre_tokenizers, processors

import bert_runtime.tokenization.word_memory as memory_module
from bert_models.tokenizer_files import read_tokenizer
from bert_runtime import load
from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.tokenization.pair_joining import JoinedPair
from bert_runtime.tokenization.word_memory import TextIds, WordMemory

# What normalization and splitting treat in ways of their own: accents in one character and in two, letters that change
# when they are decomposed or lowercased, white space and control characters of ASCII and of Unicode, punctuation.
CHARACTERS = [
    *["a", "B", "my card", " ", "  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x00", "\x1c", "\x7f", "\x85", "\xa0"],
    *["\u200b", "\u2028", "\u3000", "\ufffd", "é", "e\u0301", "\u0301", "<\u0338", "≮", "ß", "İ", "Σ", "ς", "ﬁ", "½"],
    *[
        "中",
        "文",
        "가",
        "😀",
        "’",
        "“",
        "«",
        "।",
        "!",
        "-",
        "_",
        "'",
        "$",
        "^",
        "`",
        "~",
        "[",
        "]",
        "##a",
        "1",
        "[MASK]",
    ],
]


@pytest.fixture(params=["uncased", "cased"])
def bert_tokenizer(request: pytest.FixtureRequest, toy_vocab: Path) -> Tokenizer:
    tokenizer = read_tokenizer(toy_vocab, "bert")
    normalizer = tokenizer.normalizer
    normalizer.lowercase = request.param == "uncased"
    normalizer.strip_accents = request.param == "uncased"
    tokenizer.normalizer = normalizer
    return tokenizer


def seen(encodings: Sequence[tuple[Encoding, ...]]) -> list[tuple[list[int], list[int], int, bool]]:
    return [(item.ids, list(item.type_ids), len(item), bool(item.overflowing)) for (item,) in encodings]


def test_ids_are_those_of_the_library(bert_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_SHARE", 1)
    rng = random.Random(0)
    texts = ["", " ", *("".join(rng.choices(CHARACTERS, k=rng.randint(1, 25))) for _ in range(3000))]
    tokenizer, inputs = TextTokenizer(bert_tokenizer, 40, 0), list(map(TextInput, texts))
    found = [tokenizer.encode_ids([value])[0] for value in inputs]
    assert seen(found) == seen(tokenizer.encode(inputs))
    pairs = [TextInput(first, second) for first, second in zip(texts[::2], texts[1::2], strict=True)]
    joined = [tokenizer.encode_ids([value])[0] for value in pairs]
    assert seen(joined) == seen(tokenizer.encode(pairs))
    assert sum(isinstance(item, JoinedPair) for (item,) in joined) > 500
    remembered = sum(isinstance(item, TextIds) for (item,) in found)
    assert 1500 < remembered < len(texts)  # the others have a special token, or more than 40 tokens
    assert seen(tokenizer.encode_ids(inputs[:16])) == seen(found[:16])


def test_a_long_word_is_in_order_where_the_beginning_is_truncated(toy_vocab: Path) -> None:
    tokenizer = read_tokenizer(toy_vocab, "bert")
    tokenizer.enable_truncation(8, direction="left")
    texts = TextTokenizer(tokenizer, 8, 0)
    word = "\x00" + "abcdefghijklmnopqrst"  # not printable, so the library is asked, which truncates
    (found,) = texts.pair_joiner.all_ids([word])
    assert texts.decode(found) == word[1:]


def test_a_vocabulary_that_tells_cases_apart_is_asked_for_the_word_as_it_is(toy_vocab: Path) -> None:
    tokenizer = read_tokenizer(toy_vocab, "bert")
    normalizer = tokenizer.normalizer
    normalizer.lowercase = False
    tokenizer.normalizer = normalizer
    texts = TextTokenizer(tokenizer, 16, 0)
    ((lower,), (upper,)) = (texts.encode_ids([TextInput(text)])[0] for text in ("hello there", "HELLO there"))
    assert isinstance(lower, TextIds)
    assert lower.ids != upper.ids


@pytest.mark.parametrize(
    "value",
    [
        TextInput("the [MASK] there"),
        TextInput("hello " * 15),
        TextInput("hello " * 7, "there " * 7),
        TextInput("x" * 129),
    ],
    ids=["special token", "truncated", "truncated pair", "long"],
)
def test_what_needs_more_than_words_is_left_to_the_library(bert_tokenizer: Tokenizer, value: TextInput) -> None:
    tokenizer = TextTokenizer(bert_tokenizer, 16, 0)
    ((found,),) = tokenizer.encode_ids([value])
    assert isinstance(found, Encoding)
    assert seen([(found,)]) == seen(tokenizer.encode([value]))
    others = [TextInput("hello"), value, TextInput("my card", "there")]
    assert [type(item) for (item,) in tokenizer.encode_ids(others)] == [TextIds, Encoding, JoinedPair]
    assert seen(tokenizer.encode_ids(others)) == seen(tokenizer.encode(others))


def test_on_many_cores_the_library_tokenizes_many_texts(
    bert_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, kind in ((2, TextIds), (16, Encoding)):
        monkeypatch.setattr(memory_module, "available_cores", lambda cores=cores: cores)
        tokenizer = TextTokenizer(bert_tokenizer, 16, 0)
        assert isinstance(tokenizer.encode_ids([TextInput("hello")] * 16)[0][0], TextIds)
        assert isinstance(tokenizer.encode_ids([TextInput("hello")] * 17)[0][0], kind)


def test_windows_keep_their_offsets(bert_tokenizer: Tokenizer) -> None:
    ((window,),) = TextTokenizer(bert_tokenizer, 16, 0, windows="text").encode_ids([TextInput("hello there")])
    assert window.offsets[1] == (0, 5)


def test_a_lone_surrogate_is_named_as_ever(bert_tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="surrogate") as caught:
        TextTokenizer(bert_tokenizer, 16, 0).encode_ids([TextInput("hello"), TextInput("\ud800")], first=3)
    assert caught.value.index == 4


def test_tokenizers_of_another_kind_have_no_memory(toy_vocab: Path) -> None:
    assert WordMemory.of(read_tokenizer(toy_vocab, "bert")) is not None
    other = read_tokenizer(toy_vocab, "bert")
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert WordMemory.of(other) is None
    for single in ("[CLS]:0 $A:1 [SEP]:0", "[CLS] $A $A [SEP]", "[CLS] [SEP]", "[CLS] [CLS] $A [SEP]", "$A [SEP]"):
        other = read_tokenizer(toy_vocab, "bert")
        special = [(token, other.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        other.post_processor = processors.TemplateProcessing(
            single=single, pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
        )
        assert WordMemory.of(other) is None, single
    extended = read_tokenizer(toy_vocab, "bert")
    extended.add_tokens([AddedToken("c++", normalized=True)])  # looked for in the normalized text
    assert WordMemory.of(extended) is None


def test_the_memory_is_bounded(bert_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_WORDS", 3)
    memory = WordMemory.of(bert_tokenizer)
    assert memory is not None
    for text in ("hello my card", "x" * 25, "where is it"):
        assert memory.encode(text, 128) is not None
    assert sorted(memory) == ["a", "hello", "my"]  # "a" is of the check that the tokenizer is of this kind


@pytest.mark.parametrize("pair", ["[CLS] $B:1 [SEP]:1 $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1 $A"])
def test_pairs_that_are_put_together_otherwise_are_left_to_the_library(pair: str, toy_vocab: Path) -> None:
    other = read_tokenizer(toy_vocab, "bert")
    special = [(token, other.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    other.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special_tokens=special)
    tokenizer, value = TextTokenizer(other, 16, 0), TextInput("hello there", "bye")
    assert isinstance(tokenizer.encode_ids([TextInput("hello")])[0][0], TextIds)
    assert seen(tokenizer.encode_ids([value])) == seen(tokenizer.encode([value]))
    with pytest.raises(InputError, match="its first text, then its second one"):
        _ = tokenizer.pair_joiner


def test_a_model_answers_from_the_memory(classifier_bundle: Path) -> None:
    model = load(classifier_bundle)
    (item,) = model.tokenize(["Where is my card?"])
    assert isinstance(item.windows[0], TextIds)
    assert model("Where is my card?").score == model("where is my card?").score
