"""Texts are shortened before tokenization, and the ids are those of the whole text."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers import AddedToken, Encoding, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer
from bert_runtime.tokenization.long_texts import TextShortener

_FRAGMENTS = (
    *("they're ", "don't", " ", "  ", "\t", "\n\n", "a" * 150, "中文字符", "日本語テキスト", "e\u0301\u0301", "é", "ﬁ"),
    *("[SEP]", "[MASK]", "<mask>", " <mask> ", "</s>", "...", "?!", "\u200b", "\u00a0", "🤦🏽‍♂️", "İ", "ß", "12345"),
    *(
        "'",
        "'s ",
        "\x00",
        "\ufffd",
        "\u0301" * 40,
        "x",
        " the quick brown fox ",
        "where is my card, and who has it now? ",
    ),
)
"""Pieces of texts whose tokens depend on what stands next to them, in one tokenizer or another."""

_CORPUS = [
    " ".join(random.Random(seed).choices([*_FRAGMENTS, "the", "quick", "brown", "cards", "are"], k=40))
    for seed in range(200)
]


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # as BERT
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(_CORPUS, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def byte_level_bpe(*, add_prefix_space: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())  # as RoBERTa
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", AddedToken("<mask>", lstrip=True)],
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=add_prefix_space)
    return tokenizer


def unigram(*, split: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())  # as XLM-RoBERTa and ALBERT
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>", "<mask>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "byte-level": lambda: byte_level_bpe(add_prefix_space=False),
    "byte-level-with-prefix-space": lambda: byte_level_bpe(add_prefix_space=True),
    "unigram": lambda: unigram(split=True),
    "unigram-without-words": lambda: unigram(split=False),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def random_texts(seed: int) -> Iterator[str]:
    """Texts of up to 8,000 characters: mixtures of fragments, one fragment repeated, and arbitrary characters."""
    rng = random.Random(seed)
    while True:
        size = rng.choice((50, 400, 2000))
        yield "".join(rng.choices(_FRAGMENTS, k=size // 4))
        yield rng.choice(_FRAGMENTS) * (size // 2)
        yield "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(32, 0xD7FF)))) for _ in range(size))


def truncated(first: list[int], second: list[int], tokens: int, side: str) -> tuple[list[int], list[int]]:
    """Truncate the ids of a pair by the longest-first strategy of the library."""
    short, long = sorted((len(first), len(second)))
    if short + long > tokens:
        long = short if short > tokens else max(short, tokens - short)
    if short + long > tokens:
        short, long = tokens // 2, tokens - tokens // 2
    sizes = (long, short) if len(first) > len(second) else (short, long)
    kept = [
        ids[max(len(ids) - size, 0) :] if side == "left" else ids[:size]
        for ids, size in zip((first, second), sizes, strict=True)
    ]
    return kept[0], kept[1]


def ids_by_text(encoding: Encoding) -> tuple[list[int], list[int]]:
    """Return the ids of each text of an encoding, without special tokens that the template added."""
    found: tuple[list[int], list[int]] = ([], [])
    for token, special, text in zip(encoding.ids, encoding.special_tokens_mask, encoding.sequence_ids, strict=True):
        if not special:
            found[text].append(token)
    return found


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_tokens", [16, 31, 64])
def test_ids_equal_those_of_the_whole_text(tokenizer: Tokenizer, side: str, max_tokens: int) -> None:
    tokenizer.no_truncation()
    texts = random_texts(seed=max_tokens)
    inputs = [(next(texts), next(texts)) for _ in range(12)]
    inputs += [(text, f"{text} x") for text, _ in inputs[:5]]  # which has more tokens shows at their ends alone
    whole = [[tokenizer.encode(text, add_special_tokens=False).ids for text in pair] for pair in inputs]
    tokenizer.enable_truncation(max_tokens, direction=side)
    shortener = TextShortener(tokenizer)
    was_shortened = 0
    for (first, second), (first_ids, second_ids) in zip(inputs, whole, strict=True):
        tokens = max_tokens - tokenizer.num_special_tokens_to_add(is_pair=False)
        part = shortener.shorten(first, tokens)
        was_shortened += len(part) < len(first)
        expected = first_ids[max(len(first_ids) - tokens, 0) :] if side == "left" else first_ids[:tokens]
        assert ids_by_text(tokenizer.encode(part))[0] == expected, first
        tokens = max_tokens - tokenizer.num_special_tokens_to_add(is_pair=True)
        encoding = tokenizer.encode(*shortener.shorten_pair(first, second, tokens))
        assert ids_by_text(encoding) == truncated(first_ids, second_ids, tokens, side), (first, second)
    assert was_shortened or "split=False" in str(tokenizer.pre_tokenizer)  # one word stays whole


class CountingTokenizer:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.truncation = tokenizer.truncation
        self.get_added_tokens_decoder = tokenizer.get_added_tokens_decoder
        self._encode = tokenizer.encode
        self.characters: list[int] = []

    def encode(self, text: str, **options: Any) -> Encoding:
        self.characters.append(len(text))
        return self._encode(text, **options)


@pytest.mark.parametrize("tokens", [124, 125])
def test_cost_does_not_grow_with_the_text(tokens: int) -> None:
    tokenizer = wordpiece()
    tokenizer.enable_truncation(128)
    counting = CountingTokenizer(tokenizer)
    shortener = TextShortener(counting)  # type: ignore[arg-type]
    text = "where is my card, and who has it now? " * 20_000
    assert len(shortener.shorten(text, tokens)) < 5_000
    assert sum(counting.characters) < 5_000
    counting.characters.clear()
    first, second = shortener.shorten_pair(text, text[:-7], tokens)
    assert max(len(first), len(second)) < 5_000
    # An odd token goes to the longer text, so that tokens must be counted, in chunks and once.
    assert sum(counting.characters) < (2.1 * len(text) if tokens % 2 else 10_000)
    assert max(counting.characters) < 5_000


def test_text_tokenizer_shortens_texts_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "where is my card, and who has it now? " * 100
    inputs = [TextInput(text), TextInput(text, text[:-7]), TextInput("hello"), TextInput("hello", text)]
    tokenizer = TextTokenizer(wordpiece(), 32, 0)
    one_by_one = [tokenizer.encode([value])[0][0].ids for value in inputs]
    assert [encoding.ids for (encoding,) in tokenizer.encode(inputs)] == one_by_one
    monkeypatch.setattr(TextShortener, "is_long", lambda *_: False)
    assert [tokenizer.encode([value])[0][0].ids for value in inputs] == one_by_one


def test_texts_that_are_read_in_windows_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_runtime.tokenization.text_tokenizer.MAX_WINDOWED_CHARACTERS", 100)
    tokenizer = TextTokenizer(wordpiece(), 32, 0, windows="text")
    assert len(tokenizer.encode([TextInput("card " * 20)])[0]) >= 1
    with pytest.raises(InputError, match=r"input 1: expected at most 100 characters, .* found 105; divide it"):
        tokenizer.encode([TextInput("card"), TextInput("card " * 21)])
