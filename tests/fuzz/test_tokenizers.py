"""Damaged tokenizer files: read, and used on a text and a pair."""

import copy
import functools
import json
import operator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer

from .mutations import as_json, mutated_bytes, mutated_json, raises_only_typed_errors

TEXTS = (TextInput("Hello there, 12 CARDS"), TextInput("where", "is my card?"), TextInput(""))


def _wordpiece() -> Tokenizer:
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "there", "card", "##s", ",")
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    return tokenizer


def _bpe() -> Tokenizer:
    ids = {word: i for i, word in enumerate(("<s>", "</s>", "<unk>", "h", "e", "l", "o", "he", "ll", "Ġ"))}
    tokenizer = Tokenizer(models.BPE(ids, [("h", "e"), ("l", "l")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("h", -3.0), ("▁he", -1.0)], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


DOCUMENTS = {kind.__name__: json.loads(kind().to_str()) for kind in (_wordpiece, _bpe, _unigram)}


def _changed(kind: str, keys: tuple[str | int, ...], value: Any) -> Any:
    """Return a tokenizer file with one value changed."""
    document = copy.deepcopy(DOCUMENTS[kind])
    *parents, last = keys
    functools.reduce(operator.getitem, parents, document)[last] = value
    return document


def _use(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    tokenizer = TextTokenizer.from_file(path, 16, 0)
    for text in TEXTS:
        tokenizer.encode([text])
    tokenizer.encode(TEXTS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "tokenizer.json"


@given(mutated_json(DOCUMENTS["_wordpiece"]))
@example(_changed("_wordpiece", ("post_processor", "special_tokens"), {}))  # the Rust library panics
def test_wordpiece(path: Path, value: Any) -> None:
    raises_only_typed_errors(lambda: _use(path, as_json(value)))


@given(mutated_json(DOCUMENTS["_bpe"]))
@example(_changed("_bpe", ("model", "merges", 0, 0), "<unk>"))  # the Rust library panics
def test_bpe(path: Path, value: Any) -> None:
    raises_only_typed_errors(lambda: _use(path, as_json(value)))


@given(mutated_json(DOCUMENTS["_unigram"]))
def test_unigram(path: Path, value: Any) -> None:
    raises_only_typed_errors(lambda: _use(path, as_json(value)))


@given(mutated_bytes(as_json(DOCUMENTS["_wordpiece"])))
def test_bytes(path: Path, contents: bytes) -> None:
    raises_only_typed_errors(lambda: _use(path, contents))
