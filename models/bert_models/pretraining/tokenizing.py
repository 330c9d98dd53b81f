"""Tokenize a corpus into a `TokenCache`, once per content."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tokenizers import Encoding, Tokenizer

from bert_models.corpus.sentences import Sentence
from bert_models.corpus.text_files import Corpus
from bert_models.pretraining.token_cache import FORMAT_VERSION, CacheLayout, TokenCache
from bert_models.pretraining.vocabulary import plain_tokenizer
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.errors import DataError

__all__ = ["cache_key", "tokenize_corpus"]

_CHUNK_CHARACTERS = 2**20
"""Characters of text that are tokenized, and in memory, at once: enough to keep every core busy."""


def tokenize_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: str | Path,
    progress: Callable[[int], None] = lambda num_tokens: None,
) -> TokenCache:
    """Return the tokens of `corpus` from a cache below `folder`, or tokenize it into a new cache.

    The corpus is read once for the cache key and, if there is no cache, once more to be tokenized, on all cores, a
    megabyte at a time. A cache is written atomically. Sentences without a token are left out.

    Args:
        corpus: raw text.
        tokenizer: the tokenizer; its truncation and padding are ignored.
        folder: folder that holds caches, each in a folder named by its key.
        progress: called after every megabyte with the number of tokens so far.

    Raises:
        DataError: the corpus cannot be read or has no token, or the cache is damaged.
    """
    key = cache_key(corpus, tokenizer)
    cache_folder = Path(folder) / key
    if cache_folder.is_dir():
        return TokenCache(cache_folder)
    with atomic_replace_dir(cache_folder) as building, ExitStack() as files:
        writer = _Writer(building, key, plain_tokenizer(tokenizer), files)
        for chunk in _chunks(corpus.sentences()):
            writer.write(chunk)
            progress(writer.num_tokens)
        files.close()
        writer.finish(building)
    return TokenCache(cache_folder)


def cache_key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of format version, corpus and tokenizer, except for the latter's truncation and padding."""
    parts = [FORMAT_VERSION, corpus.fingerprint(), plain_tokenizer(tokenizer).to_str()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _chunks(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Yield consecutive sentences of about `_CHUNK_CHARACTERS` in total."""
    chunk: list[Sentence] = []
    size = 0
    for sentence in sentences:
        chunk.append(sentence)
        size += len(sentence.text) + 1
        if size >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Writer:
    """Appends tokenized sentences to the flat files."""

    def __init__(self, folder: Path, key: str, tokenizer: Tokenizer, files: ExitStack) -> None:
        self._key = key
        self._tokenizer = tokenizer
        size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._dtype = np.dtype(np.uint16 if size <= 2**16 else np.uint32)
        self._files: dict[str, BinaryIO] = {
            name: files.enter_context((folder / f"{name}.bin").open("wb"))
            for name in ("tokens", "word_starts", "sentences", "documents")
        }
        self.num_tokens = 0
        self._num_sentences = 0
        self._num_documents = 0
        self._starts_document = True

    def write(self, sentences: list[Sentence]) -> None:
        """Tokenize sentences in parallel and append them."""
        # Not `encode_batch_fast`, which leaves out the words along with the offsets.
        encodings = self._tokenizer.encode_batch([sentence.text for sentence in sentences], add_special_tokens=False)
        sentence_starts: list[int] = []
        document_starts: list[int] = []
        nonempty: list[Encoding] = []
        for sentence, encoding in zip(sentences, encodings, strict=True):
            self._starts_document |= sentence.starts_document
            if not len(encoding):
                continue
            if self._starts_document:
                document_starts.append(self._num_sentences)
                self._starts_document = False
            sentence_starts.append(self.num_tokens)
            self._num_sentences += 1
            self.num_tokens += len(encoding)
            nonempty.append(encoding)
        self._num_documents += len(document_starts)
        flat = chain.from_iterable(encoding.ids for encoding in nonempty)
        self._append("tokens", np.fromiter(flat, self._dtype))
        self._append("word_starts", _word_starts(nonempty))
        self._append("sentences", np.array(sentence_starts, dtype=np.int64))
        self._append("documents", np.array(document_starts, dtype=np.int64))

    def finish(self, folder: Path) -> None:
        """Write the ends of the last sentence and document, and `cache.json`.

        Raises:
            DataError: no token was written.
        """
        if not self.num_tokens:
            raise DataError("expected a corpus with at least one word, found none")
        for name, end in (("sentences", self.num_tokens), ("documents", self._num_sentences)):
            with (folder / f"{name}.bin").open("ab") as stream:
                np.array([end], dtype=np.int64).tofile(stream)
        CacheLayout(
            format_version=FORMAT_VERSION,
            key=self._key,
            token_dtype=self._dtype.name,
            num_tokens=self.num_tokens,
            num_sentences=self._num_sentences,
            num_documents=self._num_documents,
        ).write(folder)

    def _append(self, name: str, values: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> None:
        values.tofile(self._files[name])


def _word_starts(encodings: list[Encoding]) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
    """Return whether each token is the first of its word, bool [tokens of all encodings].

    A token that belongs to no word (its word is None) counts as a word.
    """
    flags = [
        word is None or word != before
        for words in (encoding.word_ids for encoding in encodings)
        for before, word in zip(chain((None,), words), words, strict=False)
    ]
    return np.array(flags, dtype=np.bool_)
