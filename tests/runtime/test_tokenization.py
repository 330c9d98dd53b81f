"""Tokenization: accepted inputs, truncation, pairs, padding, and invalid text."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Encoding

from bert_models import open_checkpoint
from bert_models.tokenizer_files import read_tokenizer
from bert_runtime.errors import BundleError, InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer, pad

TEXTS = ["hello", "where is my card?", "", "good morning, I lost my money at the bank!", "a " * 100, "déjà vu 東京 😀"]


@pytest.fixture
def tokenizer(classifier_checkpoint: Path) -> TextTokenizer:
    return open_checkpoint(classifier_checkpoint).text_tokenizer(16)


def tokens(tokenizer: TextTokenizer, *texts: str) -> list[str]:
    return encoded(tokenizer, TextInput(*texts))[0].tokens


def encoded(tokenizer: TextTokenizer, *inputs: TextInput) -> list[Encoding]:
    """Return the only window of each input."""
    return [encoding for (encoding,) in tokenizer.encode(inputs)]


def test_the_tokenizer_decides_which_side_is_truncated(toy_vocab: Path, tmp_path: Path) -> None:
    left = read_tokenizer(toy_vocab, "bert")
    left.enable_truncation(4, direction="left")
    TextTokenizer(left, 4, 0).save(tmp_path / "tokenizer.json")
    again = TextTokenizer.from_file(tmp_path / "tokenizer.json", 4, 0)
    assert tokens(again, "hello there is a bank") == ["[CLS]", "a", "bank", "[SEP]"]


def test_special_tokens_and_wordpieces(tokenizer: TextTokenizer) -> None:
    assert tokens(tokenizer, "Hello, THERE") == ["[CLS]", "hello", ",", "the", "##r", "##e", "[SEP]"]
    assert tokens(tokenizer, "") == ["[CLS]", "[SEP]"]


def test_pairs_have_two_segments(tokenizer: TextTokenizer) -> None:
    encodings = encoded(tokenizer, TextInput("where is it", "a bank"), TextInput("bye"))
    batch = pad(encodings, tokenizer.pad_token_id)
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8]
    assert batch.attention_mask.tolist() == [[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]]
    assert tokens(tokenizer, "where is it", "a bank") == ["[CLS]", "where", "is", "it", "[SEP]", "a", "bank", "[SEP]"]


def test_long_texts_are_truncated_at_the_end(tokenizer: TextTokenizer) -> None:
    assert tokens(tokenizer, "my card " * 50) == ["[CLS]", *["my", "card"] * 7, "[SEP]"]
    assert tokens(tokenizer, *["hello " * 14]) == ["[CLS]", *["hello"] * 14, "[SEP]"]


def test_the_longer_text_of_a_pair_is_truncated_first(tokenizer: TextTokenizer) -> None:
    """13 of 16 tokens are left for the two texts."""
    assert tokens(tokenizer, "my " * 50, "your card") == ["[CLS]", *["my"] * 11, "[SEP]", "your", "card", "[SEP]"]
    found = tokens(tokenizer, "my " * 50, "card " * 50)
    assert len(found) == 16
    assert abs(found.count("my") - found.count("card")) == 1


def test_a_word_of_more_than_100_letters_is_unknown(tokenizer: TextTokenizer) -> None:
    assert tokens(tokenizer, "my " + "x" * 101) == ["[CLS]", "my", "[UNK]", "[SEP]"]


def test_a_megabyte_of_text_is_truncated(tokenizer: TextTokenizer) -> None:
    assert tokens(tokenizer, "card " * 200_000) == ["[CLS]", *["card"] * 14, "[SEP]"]


def test_encoding_one_by_one_equals_a_batch(tokenizer: TextTokenizer) -> None:
    inputs = [*map(TextInput, TEXTS), TextInput("hello", "where is it"), TextInput("", "")]
    together = encoded(tokenizer, *inputs)
    for value, encoding in zip(inputs, together, strict=True):
        (alone,) = encoded(tokenizer, value)
        assert (alone.ids, alone.type_ids) == (encoding.ids, encoding.type_ids)
        assert len(alone) == len(encoding) <= 16


def test_padding_is_on_the_right_with_the_pad_token(tokenizer: TextTokenizer) -> None:
    encodings = encoded(tokenizer, TextInput("hello"), TextInput("where is my card"))
    batch = pad(encodings, pad_token_id=9)
    assert batch.input_ids.tolist() == [[*encodings[0].ids, 9, 9, 9], encodings[1].ids]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert batch.token_type_ids.tolist() == [[0] * 6] * 2
    assert {array.dtype for array in batch} == {np.dtype(np.int64)}


def test_padding_one_equals_padding_it_among_others(tokenizer: TextTokenizer) -> None:
    (pair,) = encoded(tokenizer, TextInput("hello", "bye now"))
    alone, among = pad([pair], 0), pad([pair, pair], 0)
    for one, two in zip(alone, among, strict=True):
        assert one.tolist() == two[:1].tolist()
        assert one.dtype == two.dtype


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([TextInput("ab\ud83d")], r"input 0: the text holds a lone surrogate \(U\+D83D\) at character 2"),
        ([TextInput("a"), TextInput("\udcff")], r"input 1: the text holds a lone surrogate \(U\+DCFF\) at character 0"),
        ([TextInput("a", "b\ud800")], r"input 0: the text holds a lone surrogate \(U\+D800\) at character 1"),
        ([TextInput("a")] * 3 + [TextInput("a", "\ud800")], r"input 3: the text holds a lone surrogate"),
    ],
)
def test_lone_surrogates_are_named(tokenizer: TextTokenizer, inputs: list[TextInput], message: str) -> None:
    with pytest.raises(InputError, match=message + r".*encode\('utf-8', 'replace'\)"):
        tokenizer.encode(inputs)
    assert tokens(tokenizer, "still fine")[1] == "s"


def test_padding_and_truncation_of_the_tokenizer_file_are_overridden(
    classifier_checkpoint: Path, tmp_path: Path
) -> None:
    """The file of all-MiniLM-L6-v2 pads everything to 128 tokens."""
    original = open_checkpoint(classifier_checkpoint).tokenizer()
    original.enable_padding(length=40)
    original.enable_truncation(4)
    original.save(str(tmp_path / "tokenizer.json"))
    loaded = TextTokenizer.from_file(tmp_path / "tokenizer.json", max_tokens=6, pad_token_id=0)
    assert tokens(loaded, "my card " * 9) == ["[CLS]", "my", "card", "my", "card", "[SEP]"]
    assert tokens(loaded, "my") == ["[CLS]", "my", "[SEP]"]
    assert [len(encoding) for encoding in encoded(loaded, TextInput("my"), TextInput("my card " * 9))] == [3, 6]


def test_saved_tokenizers_give_the_same_tokens(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = TextTokenizer.from_file(tmp_path / "tokenizer.json", tokenizer.max_tokens, tokenizer.pad_token_id)
    assert again.vocab_size == tokenizer.vocab_size
    for text in TEXTS:
        assert tokens(again, text) == tokens(tokenizer, text)


@pytest.mark.parametrize("content", [None, "", "{}", '{"version": "1.0"}', "\x00\x01"])
def test_files_that_are_not_tokenizers_are_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json: not a tokenizer file: "):
        TextTokenizer.from_file(path, 16, 0)


def test_many_threads_can_tokenize_at_once(tokenizer: TextTokenizer) -> None:
    """A `Tokenizer` that is reconfigured while another thread encodes raises "Already borrowed"."""
    inputs = [*map(TextInput, TEXTS * 4)]
    expected = [encoding.ids for encoding in encoded(tokenizer, *inputs)]
    start = threading.Barrier(8)

    def work(thread: int) -> bool:
        start.wait()
        for i in range(30):
            one = (thread + i) % len(inputs)
            if encoded(tokenizer, inputs[one])[0].ids != expected[one]:
                return False
            if [encoding.ids for encoding in encoded(tokenizer, *inputs)] != expected:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.pretrained
@pytest.mark.parametrize("max_tokens", [8, 32, 512])
def test_minilm_is_tokenized_as_transformers_does(pretrained_minilm: Path, max_tokens: int) -> None:
    from transformers import BertTokenizerFast

    reference = BertTokenizerFast.from_pretrained(pretrained_minilm)
    tokenizer = open_checkpoint(pretrained_minilm).text_tokenizer(max_tokens)
    texts = [*TEXTS, "Naïve café: 1,234.5 km/h — isn't it?", "unaffable [MASK] 💳\u200b\tend"]
    # transformers takes an empty second text for none at all.
    pairs = [*((text, None) for text in texts), *((a, b) for a, b in zip(texts, reversed(texts), strict=True) if b)]
    for first, second in pairs:
        expected = reference(first, second, truncation=True, max_length=max_tokens, return_token_type_ids=True)
        (found,) = encoded(tokenizer, TextInput(first, second))
        assert found.ids == expected["input_ids"]
        assert found.type_ids == expected["token_type_ids"]


def test_max_tokens_too_small_to_truncate_is_refused(classifier_bundle: Path) -> None:
    path = classifier_bundle / "tokenizer.json"
    with pytest.raises(
        InputError, match="max_tokens must be at least 4, one more than a pair's special tokens, found 3"
    ):
        TextTokenizer.from_file(path, max_tokens=3, pad_token_id=0)
    shortest = TextTokenizer.from_file(path, max_tokens=4, pad_token_id=0)
    (pair,) = encoded(shortest, TextInput("a b c d", "e f g h"))
    assert len(pair) == 4
