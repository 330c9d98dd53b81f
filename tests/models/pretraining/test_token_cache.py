"""Token caches: their files, their key, and damage."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from bert_models.corpus import TextFiles
from bert_models.corpus.sentences import Sentence
from bert_models.pretraining import TokenCache, split_documents, tokenize_corpus
from bert_models.pretraining.token_cache import MAX_DEV_TOKENS
from bert_runtime.errors import DataError

from ..toy_corpus import toy_cache, toy_tokenizer


def test_cache_holds_tokens_words_sentences_and_documents(tmp_path: Path, toy_vocab: Path) -> None:
    (tmp_path / "a.txt").write_text("the cab\n\x07\n\n\x07\n\nbank\nab, c [SEP]\n")
    tokenizer = toy_tokenizer(toy_vocab)
    cache = tokenize_corpus(TextFiles([tmp_path / "a.txt"]), tokenizer, tmp_path / "cache")
    tokens = [tokenizer.id_to_token(int(token)) for token in cache.tokens]
    # A special token's spelling is tokenized as text; lines and documents without a token are left out.
    assert tokens == ["the", "c", "##a", "##b", "bank", "a", "##b", ",", "c", "[UNK]", "s", "##e", "##p", "[UNK]"]
    assert cache.word_starts.tolist() == [not token.startswith("##") for token in tokens]
    assert cache.sentences.tolist() == [0, 4, 5, len(tokens)]
    assert cache.documents.tolist() == [0, 1, 3]
    assert cache.sentence_bounds(1).tolist() == [4, 5, len(tokens)]
    assert (cache.num_tokens, cache.num_sentences, cache.num_documents) == (len(tokens), 3, 2)
    assert cache.tokens.dtype == np.uint16


def test_chunk_size_does_not_change_the_cache(tmp_path: Path, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [["ab", "c"], ["d"], ["efg", "h", "i"]]
    whole = toy_cache(tmp_path / "whole", toy_vocab, documents)
    monkeypatch.setattr("bert_models.pretraining.tokenizing._CHUNK_CHARACTERS", 1)
    calls: list[int] = []
    corpus = TextFiles([tmp_path / "whole" / "corpus.txt"])
    parts = tokenize_corpus(corpus, toy_tokenizer(toy_vocab), tmp_path / "parts", calls.append)
    for name in ("tokens", "word_starts", "sentences", "documents"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    assert calls == [2, 3, 4, 7, 8, 9]


def test_large_vocabulary_is_stored_as_uint32(tmp_path: Path) -> None:
    vocab = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 2**16 + 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "a.txt").write_text("w1 w65536")
    cache = tokenize_corpus(TextFiles([tmp_path / "a.txt"]), tokenizer, tmp_path)
    assert cache.tokens.dtype == np.uint32
    assert cache.tokens.tolist() == [1, 65536]


def test_cache_key_depends_on_corpus_and_tokenizer(
    tmp_path: Path, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = toy_cache(tmp_path, toy_vocab, [["ab"], ["c"]])
    tokenizer = toy_tokenizer(toy_vocab)
    tokenizer.enable_truncation(8)  # ignored here, and so not part of the key
    corpus = TextFiles([tmp_path / "corpus.txt"])
    with monkeypatch.context() as patch:
        patch.setattr(TextFiles, "sentences", lambda self: pytest.fail("read again"))
        assert tokenize_corpus(corpus, tokenizer, tmp_path / "cache").folder == first.folder
    (tmp_path / "corpus.txt").write_text("a d\n\nc")
    other = tokenize_corpus(corpus, tokenizer, tmp_path / "cache")
    assert other.folder != first.folder
    tokenizer.add_tokens(["zzz"])
    assert tokenize_corpus(corpus, tokenizer, tmp_path / "cache").folder not in (first.folder, other.folder)
    assert len(list((tmp_path / "cache").iterdir())) == 3


class Interrupted:
    """A corpus whose reading is interrupted."""

    def sentences(self) -> Iterator[Sentence]:
        yield Sentence("a b", True)
        raise KeyboardInterrupt

    def fingerprint(self) -> str:
        return "interrupted"


def test_interrupted_build_leaves_no_files(tmp_path: Path, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_models.pretraining.tokenizing._CHUNK_CHARACTERS", 1)
    with pytest.raises(KeyboardInterrupt):
        tokenize_corpus(Interrupted(), toy_tokenizer(toy_vocab), tmp_path / "cache")
    assert not list(tmp_path.iterdir())


def test_empty_corpus_is_rejected(tmp_path: Path, toy_vocab: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n\x07\n")
    with pytest.raises(DataError, match="at least one word"):
        tokenize_corpus(TextFiles([tmp_path / "a.txt"]), toy_tokenizer(toy_vocab), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_damaged_files_are_named(tmp_path: Path, toy_vocab: Path) -> None:
    folder = toy_cache(tmp_path, toy_vocab, [["ab"], ["c"]]).folder
    path = folder / "tokens.bin"
    contents = path.read_bytes()
    path.write_bytes(contents[:-1])
    with pytest.raises(DataError, match=r"tokens.bin: expected 6 bytes, found 5; delete the folder"):
        TokenCache(folder)
    path.write_bytes(contents)
    layout = json.loads((folder / "cache.json").read_text())
    (folder / "cache.json").write_text(json.dumps({**layout, "format_version": 9}))
    with pytest.raises(DataError, match="expected a token cache of version 1, found 9"):
        TokenCache(folder)
    (folder / "cache.json").unlink()
    with pytest.raises(DataError, match="not a token cache"):
        TokenCache(folder)


def test_cache_pickles_as_its_folder(tmp_path: Path, toy_vocab: Path) -> None:
    cache = toy_cache(tmp_path, toy_vocab, [["ab" * 5000]])
    data = pickle.dumps(cache)
    assert len(data) < 1000
    assert np.array_equal(pickle.loads(data).tokens, cache.tokens)


EQUAL = np.full(1000, 5)
"""Tokens of documents of the same length."""


def test_documents_are_split_by_seed() -> None:
    train, dev = split_documents(EQUAL[:1000], 0.1, seed=3)
    assert len(dev) == 100
    assert sorted([*train, *dev]) == list(range(1000))
    assert np.array_equal(dev, split_documents(EQUAL[:1000], 0.1, seed=3)[1])
    assert not np.array_equal(dev, split_documents(EQUAL[:1000], 0.1, seed=4)[1])
    assert [len(part) for part in split_documents(EQUAL[:3], 0.01, seed=0)] == [2, 1]
    assert [len(part) for part in split_documents(EQUAL[:3], 0.99, seed=0)] == [1, 2]
    assert [len(part) for part in split_documents(EQUAL[:9], 0.01, seed=0, min_documents=2)] == [7, 2]
    assert [len(part) for part in split_documents(EQUAL[:9], 0.99, seed=0, min_documents=2)] == [2, 7]
    with pytest.raises(DataError, match="at least 2 documents, to hold 1 out for evaluation, found 1; check how"):
        split_documents(EQUAL[:1], 0.1, seed=0)
    with pytest.raises(DataError, match="at least 4 documents, to hold 2 out for evaluation, found 3; check how"):
        split_documents(EQUAL[:3], 0.1, seed=0, min_documents=2)
    for fraction in (0, 1):
        with pytest.raises(DataError, match=f"between 0 and 1, found {fraction}"):
            split_documents(EQUAL[:10], fraction, seed=0)


def test_tokens_are_held_out_up_to_a_maximum_in_short_documents() -> None:
    tokens = np.random.default_rng(0).integers(10, 5_000, 10_000)
    tokens[7] = MAX_DEV_TOKENS + 1  # longer than all that is to be held out
    train, dev = split_documents(tokens, 0.1, seed=0)
    assert MAX_DEV_TOKENS <= tokens[dev].sum() < MAX_DEV_TOKENS + 5_000
    assert np.array_equal(np.sort([*train, *dev]), np.arange(len(tokens)))
    few = np.array([50_000, 900, 60_000, 40_000])
    assert [split_documents(few, 0.01, seed)[1].tolist() for seed in range(4)] == [[1]] * 4
    few[1] = 3  # what stands before the first document, say: the next longer one tells something
    assert [split_documents(few, 0.01, seed)[1].tolist() for seed in range(4)] == [[1, 3]] * 4
    # None is short enough.
    large = np.array([60_000_000, 50_000_000, 40_000_000])
    assert [split_documents(large, 0.01, seed)[1].tolist() for seed in range(4)] == [[2]] * 4
    large[0] = 3
    assert [split_documents(large, 0.01, seed)[1].tolist() for seed in range(4)] == [[0]] * 4
    assert split_documents(np.array([9, 3, 5, 4]), 0.01, 0, min_documents=2)[1].tolist() == [1, 3]


_PEAK = """
import sys
from pathlib import Path
from bert_models.corpus import TextFiles
from bert_models.pretraining import tokenize_corpus
from bert_models.tokenizer_files import read_tokenizer
corpus, vocab, cache = map(Path, sys.argv[1:])
tokenizer = read_tokenizer(vocab, "bert")
tokens = tokenize_corpus(TextFiles([corpus]), tokenizer, cache)
assert tokens.num_tokens
# Not getrusage: its peak is that of the process that was forked, where that was larger.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, toy_vocab: Path) -> None:
    def peak_mib(num_lines: int) -> float:
        path = tmp_path / f"{num_lines}.txt"
        with path.open("w") as stream:
            stream.writelines(
                "hello how are you thank you for the book about money\n" * 10 + "\n" for _ in range(num_lines // 10)
            )
        command = [sys.executable, "-c", _PEAK, str(path), str(toy_vocab), str(tmp_path / "cache")]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024

    # 3 MB and 16 MB of text; both took 288 MiB, PyTorch and a megabyte of encodings included.
    small, large = peak_mib(60_000), peak_mib(300_000)
    assert large - small < 40, (small, large)
