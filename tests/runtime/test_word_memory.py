"""Token ids from the memory of words: those of the library, or left to it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Encoding, Tokenizer, pre_tokenizers

import bert_runtime.tokenization.word_memory as memory_module
from bert_models.tokenizer_files import read_tokenizer
from bert_runtime import load
from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer, text_tokenizer
from bert_runtime.tokenization.word_memory import TextIds, word_memory

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


def test_ids_are_those_of_the_library(bert_tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    texts = ["", " ", *("".join(rng.choices(CHARACTERS, k=rng.randint(1, 25))) for _ in range(3000))]
    tokenizer, inputs = TextTokenizer(bert_tokenizer, 40, 0), list(map(TextInput, texts))
    found = [tokenizer.encode_ids([value])[0] for value in inputs]
    assert seen(found) == seen(tokenizer.encode(inputs))
    remembered = sum(isinstance(item, TextIds) for (item,) in found)
    assert 1500 < remembered < len(texts)  # the others have a special token, or more than 40 tokens
    assert seen(tokenizer.encode_ids(inputs[:16])) == seen(found[:16])


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
    [TextInput("the [MASK] there"), TextInput("hello " * 15), TextInput("hello", "there"), TextInput("x" * 129)],
    ids=["special token", "truncated", "pair", "long"],
)
def test_what_needs_more_than_words_is_left_to_the_library(bert_tokenizer: Tokenizer, value: TextInput) -> None:
    tokenizer = TextTokenizer(bert_tokenizer, 16, 0)
    ((found,),) = tokenizer.encode_ids([value])
    assert isinstance(found, Encoding)
    assert seen([(found,)]) == seen(tokenizer.encode([value]))


def test_on_many_cores_the_library_tokenizes_many_texts(
    bert_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, kind in ((2, TextIds), (16, Encoding)):
        monkeypatch.setattr(text_tokenizer, "available_cores", lambda cores=cores: cores)
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
    assert word_memory(read_tokenizer(toy_vocab, "bert")) is not None
    other = read_tokenizer(toy_vocab, "bert")
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert word_memory(other) is None
    extended = read_tokenizer(toy_vocab, "bert")
    extended.add_tokens([AddedToken("c++", normalized=True)])  # looked for in the normalized text
    assert word_memory(extended) is None


def test_the_memory_is_bounded(bert_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_WORDS", 2)
    memory = word_memory(bert_tokenizer)
    assert memory is not None
    for text in ("hello my card", "x" * 65, "where is it"):
        assert memory.encode(text, 128) is not None
    assert sorted(memory) == ["hello", "my"]


def test_a_model_answers_from_the_memory(classifier_bundle: Path) -> None:
    model = load(classifier_bundle)
    (item,) = model.tokenize(["Where is my card?"])
    assert isinstance(item.windows[0], TextIds)
    assert model("Where is my card?").score == model("where is my card?").score
