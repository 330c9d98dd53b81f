"""Errors of tokenizer training: invalid requests, unreadable corpora, and existing outputs that it keeps."""

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_models import TrainingError
from bert_models.tokenizer_files import TOKENIZER_KINDS, train_tokenizer
from bert_runtime.errors import DataError, MissingExtraError

from ..toy_tokenizers import write_corpus

SIZE = 500

kinds = pytest.mark.parametrize("kind", TOKENIZER_KINDS)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@kinds
def test_vocabulary_below_special_tokens_and_alphabet_is_refused(corpus: Path, tmp_path: Path, kind: str) -> None:
    with pytest.raises(TrainingError, match=r"vocabulary size of at least \d+ \(5 special tokens and .*found 20$") as e:
        train_tokenizer([corpus], kind, 20, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    min_size = int(str(e.value).split("at least ")[1].split()[0])
    assert train_tokenizer([corpus], kind, min_size, tmp_path / "out").vocab_size == min_size
    with pytest.raises(TrainingError, match=f"at least {min_size} "):
        train_tokenizer([corpus], kind, min_size - 1, tmp_path / "other")


@kinds
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, r"absent\.txt: no such file"),
        ("empty.txt", b"\n\n", r"empty\.txt: expected at least one row, found none"),
        ("latin.txt", b"a caf\xe9\n", r"latin\.txt:1: expected UTF-8 text, found byte 0xe9"),
        ("late.txt", b"a card\n" * 20_000 + b"caf\xe9\n", r"late\.txt:20001: expected UTF-8 text, found byte 0xe9"),
        ("broken.jsonl", b'{"text": "a"}\n{"text": \n', r"broken\.jsonl:2: not JSON"),
        ("nameless.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"nameless\.jsonl:2: expected a field 'text'"),
        ("half.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}\n', r"half\.jsonl:2: .* lone surrogate \(U\+D83D\)"),
        ("cut.txt.gz", gzip.compress(b"a card\n" * 1000, mtime=0)[:-12], r"cut\.txt\.gz: cannot be read"),
        ("corpus.pdf", b"a card", r"corpus\.pdf: expected a file that ends in"),
    ],
)
def test_unreadable_corpus_is_refused(
    corpus: Path, tmp_path: Path, kind: str, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        train_tokenizer([corpus, tmp_path / name], kind, SIZE, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else [name])


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_corpus_without_words_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "odd.txt").write_text("\x07\n", encoding="utf-8")
    with pytest.raises(TrainingError, match="expected texts with words in them"):
        train_tokenizer([tmp_path / "odd.txt"], kind, SIZE, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "char"}, "expected a tokenizer kind of wordpiece, bpe, unigram, found 'char'"),
        ({"files": []}, "expected at least one file of texts"),
        ({"vocab_size": 0}, "expected a vocabulary size of at least 1, found 0"),
        ({"min_frequency": 0}, "expected a min_frequency of at least 1, found 0"),
        ({"kind": "unigram", "min_frequency": 2}, "unigram prunes pieces"),
    ],
)
def test_invalid_request_is_refused(corpus: Path, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"files": [corpus], "kind": "wordpiece", "vocab_size": SIZE, "output": tmp_path / "out"}
    with pytest.raises(TrainingError, match=message):
        train_tokenizer(**(request | arguments))


def test_existing_tokenizer_is_replaced_with_force_alone(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    train_tokenizer([corpus], "bpe", SIZE, out)
    before = contents(out)
    with pytest.raises(TrainingError, match="a tokenizer is already there; replace it with --force"):
        train_tokenizer([corpus], "wordpiece", SIZE, out)
    with pytest.raises(TrainingError, match="at least"):
        train_tokenizer([corpus], "wordpiece", 20, out, force=True)
    assert contents(out) == before
    train_tokenizer([corpus], "wordpiece", SIZE, out, force=True)
    assert sorted(contents(out)) == ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]


@pytest.mark.parametrize("extra", ["model.safetensors", "notes.txt", "config.json"])
def test_force_does_not_replace_other_folders_and_files(corpus: Path, tmp_path: Path, extra: str) -> None:
    train_tokenizer([corpus], "wordpiece", SIZE, tmp_path / "out")
    (tmp_path / "out" / extra).write_text("precious")
    (tmp_path / "file").write_text("precious")
    for output in (tmp_path / "out", tmp_path / "file"):
        with pytest.raises(TrainingError, match="exists and is not a tokenizer folder; choose another output folder"):
            train_tokenizer([corpus], "wordpiece", SIZE, output, force=True)
    assert (tmp_path / "out" / extra).read_text() == (tmp_path / "file").read_text() == "precious"


def test_missing_sentencepiece_error_names_the_extra(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"'sentencepiece'.*pip install .*\[export\]'"):
        train_tokenizer([corpus], "unigram", SIZE, tmp_path / "out")
    train_tokenizer([corpus], "wordpiece", SIZE, tmp_path / "out")


def test_dataset_of_blank_rows_is_an_error(tmp_path: Path) -> None:
    (dataset := tmp_path / "dataset").mkdir()
    (dataset / "train.jsonl").write_text('{"text": " "}\n{"text": ""}\n')
    with pytest.raises(DataError, match="dataset: expected texts, found blank rows only"):
        train_tokenizer([dataset], "wordpiece", SIZE, tmp_path / "out")
    assert not (tmp_path / "out").exists()
