"""Toy token caches: every letter is a token, and a sentence is a string of letters."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bert_models.corpus import TextFiles
from bert_models.pretraining import TokenCache, tokenize_corpus
from bert_models.tokenizer_files import read_tokenizer


def toy_tokenizer(vocab: Path) -> Tokenizer:
    return read_tokenizer(vocab, "bert")


def toy_cache(folder: Path, vocab: Path, documents: Sequence[Sequence[str]]) -> TokenCache:
    """Tokenize documents whose sentences are given as letters, `"abc"` for the text `a b c`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(" ".join(sentence) for sentence in document) for document in documents)
    (folder / "corpus.txt").write_text(text)
    return tokenize_corpus(TextFiles([folder / "corpus.txt"]), toy_tokenizer(vocab), folder / "cache")


def random_documents(num_documents: int, max_letters: int, seed: int = 0) -> list[list[str]]:
    """Return random documents of 1 to 12 sentences of 1 to `max_letters` letters."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return [
        ["".join(generator.choice(letters, generator.integers(1, max_letters + 1))) for _ in range(count)]
        for count in generator.integers(1, 13, num_documents)
    ]


def letters(cache: TokenCache, vocab: Path, span: NDArray[np.int64]) -> str:
    """Decode a span of tokens, without spaces."""
    tokenizer = toy_tokenizer(vocab)
    return "".join(tokenizer.id_to_token(int(token)) for token in cache.tokens[span[0] : span[1]])


def document_of(cache: TokenCache, position: int) -> int:
    """Return the index of the document that a token is in."""
    sentence = int(np.searchsorted(cache.sentences, position, side="right")) - 1
    return int(np.searchsorted(cache.documents, sentence, side="right")) - 1
