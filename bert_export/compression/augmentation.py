"""Make further training rows out of those given: words are replaced by similar ones (TinyBERT, arXiv:1909.10351).

TinyBERT takes its candidates from BERT's masked-token head or from GloVe. A fine-tuned checkpoint has neither, but its
own token embeddings, which know as well which words are alike.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bert_export.calibration_texts import INPUT_FIELDS
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record

__all__ = ["SimilarWords", "augmented_rows", "num_copies"]

_REPLACED_SHARE = 0.4
"""Share of the words that are replaced, if they have similar ones (TinyBERT's p_t, appendix A)."""

_NUM_SIMILAR = 15
"""Similar words that a replacement is chosen from (TinyBERT's K)."""

_MAX_WORDS = 20_000
"""Distinct words that may be replaced or be a replacement: the most frequent ones. Their similarities take seconds."""

_MAX_PIECES = 3
"""Pieces of such a word at most: the mean of more says little, and a script without spaces has no words here."""

_ROWS_WANTED, _MAX_COPIES = 40_000, 9
"""Rows that copies are made for, and copies of a row at most (judgements)."""

_WORD = re.compile(r"\w+")


def num_copies(num_rows: int) -> int:
    """Return how many copies of each row there should be: the fewer rows, the more copies."""
    return min(max(-(-_ROWS_WANTED // num_rows) - 1, 0), _MAX_COPIES)


class SimilarWords:
    """The words of some rows, and for each the ones whose embeddings are the most similar.

    Args:
        records: Rows whose words are used.
        token_ids: Returns the token ids of a word; empty where the vocabulary has none for it.
        embeddings: Token embeddings, float [vocab_size, width].
    """

    def __init__(
        self, records: Iterable[Record], token_ids: Callable[[str], Sequence[int]], embeddings: FloatArray
    ) -> None:
        counts = Counter(word for record in records for word in _words(record))
        pieces = {word: list(token_ids(word)) for word, _ in counts.most_common(_MAX_WORDS)}
        pieces = {word: ids for word, ids in pieces.items() if 0 < len(ids) <= _MAX_PIECES}
        vectors = np.array([embeddings[ids].mean(axis=0) for ids in pieces.values()], dtype=np.float32)
        self.words = list(pieces)
        self._index = {word: index for index, word in enumerate(self.words)}
        self._similar = _most_similar(vectors, [set(ids) for ids in pieces.values()]) if pieces else []

    def of(self, word: str) -> list[str]:
        """Return the words most similar to a word, the most similar first; empty for an unknown one."""
        index = self._index.get(word)
        return [] if index is None else [self.words[other] for other in self._similar[index]]


def _most_similar(vectors: FloatArray, pieces: Sequence[set[int]]) -> list[list[int]]:
    """Return for each vector the indices of the others of the largest cosine, the largest first.

    Words that share a piece are left out: they are alike in spelling, which says little about what they mean.

    Args:
        vectors: One per word, float [words, width].
        pieces: The token ids of each word.
    """
    normed = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    num_seen = min(4 * _NUM_SIMILAR, len(vectors))
    similar: list[list[int]] = []
    for first in range(0, len(vectors), 1024):
        scores = normed[first : first + 1024] @ normed.T
        best = np.argpartition(-scores, num_seen - 1, axis=1)[:, :num_seen]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        for row in np.take_along_axis(best, order, axis=1).tolist():
            own = pieces[len(similar)]
            similar.append([other for other in row if own.isdisjoint(pieces[other])][:_NUM_SIMILAR])
    return similar


def augmented_rows(records: Sequence[Record], similar: SimilarWords, copies: int, seed: int) -> list[Record]:
    """Return copies of rows, without labels, in which words are replaced by similar ones at random.

    A copy that equals its row, as in scripts without spaces between words, is left out.

    Args:
        records: Rows.
        similar: Replacements.
        copies: Copies of each row.
        seed: Seed of all choices.
    """
    random = np.random.default_rng(seed)
    copied = (_changed(record, similar, random) for _ in range(copies) for record in records)
    return [record for record in copied if record is not None]


def _changed(record: Record, similar: SimilarWords, random: np.random.Generator) -> Record | None:
    """Return a copy of a row's inputs with other words, or `None` if no word was replaced."""

    def change(word: str) -> str:
        others = similar.of(word) if random.random() < _REPLACED_SHARE else []
        return others[random.integers(len(others))] if others else word

    inputs = _inputs(record)
    fields = {
        name: _WORD.sub(lambda match: change(match.group()), value) if isinstance(value, str) else [*map(change, value)]
        for name, value in inputs.items()
    }
    return replace(record, fields=fields) if fields != inputs else None


def _words(record: Record) -> Iterator[str]:
    for value in _inputs(record).values():
        yield from _WORD.findall(value) if isinstance(value, str) else value


def _inputs(record: Record) -> dict[str, str | list[str]]:
    """Return the fields of a row that hold a text or words. The task may not read all of them."""
    found = {name: record.fields[name] for name in INPUT_FIELDS if name in record.fields}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))
    }
