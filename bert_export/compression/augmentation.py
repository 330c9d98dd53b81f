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

__all__ = ["SimilarWords", "augmented_rows", "num_copies", "num_words", "shares_of_copies"]

_REPLACED_SHARE = 0.4
"""Share of the words that are replaced, if they have similar ones (TinyBERT's p_t, appendix A)."""

_NUM_SIMILAR = 15
"""Similar words that a replacement is chosen from (TinyBERT's K)."""

_MAX_WORDS = 20_000
"""Distinct words that may be replaced or be a replacement: the most frequent ones. Their similarities take seconds."""

_MAX_PIECES = 3
"""Pieces of such a word at most: the mean of more says little, and a script without spaces has no words here."""

_COPIES_PER_S, _MAX_COPIES = 60, 9
"""Copies for each second of the budget, and of each row at most (judgements): more than there is time to train on."""

_NUM_LENGTH_GROUPS, _MAX_SHARE = 8, 10.0
"""Groups of rows by their length, and how many times as many copies as others a row has at most (judgements)."""

_WORD = re.compile(r"\w+")


def num_copies(num_rows: int, budget_s: float) -> int:
    """Return how many copies of each row there should be: at most as many as there is time for."""
    return min(int(_COPIES_PER_S * budget_s) // num_rows, _MAX_COPIES)


def num_words(record: Record) -> int:
    """Return the number of words of a row's inputs."""
    return sum(1 for _ in _words(record))


def shares_of_copies(records: Sequence[Record], like: Sequence[Record]) -> FloatArray:
    """Return how many copies rows should have, so that these are as long as other rows; 1 on average, float [rows].

    Training files may have shorter texts than those a model is for: of SST-2, rows have 10 words on average, and dev's
    sentences 19.

    Args:
        records: rows.
        like: other rows, such as those of dev.
    """
    lengths, wanted = (np.array(list(map(num_words, rows))) for rows in (records, like))
    limits = np.quantile(wanted, np.arange(_NUM_LENGTH_GROUPS) / _NUM_LENGTH_GROUPS)  # the first group is shorter
    groups, wanted_groups = (np.searchsorted(limits, part, side="right") for part in (lengths, wanted))
    found, expected = (np.bincount(part, minlength=len(limits) + 1) for part in (groups, wanted_groups))
    shares = (expected / len(wanted) / np.maximum(found / len(records), 1e-12))[groups]
    if not shares.any():  # all are shorter
        return np.ones(len(records))
    shares = np.minimum(shares / shares.mean(), _MAX_SHARE)
    return np.asarray(shares / shares.mean())


class SimilarWords:
    """The words of some rows, and for each the ones whose embeddings are the most similar.

    Args:
        records: rows whose words are used.
        token_ids: returns the token ids of a word; empty where the vocabulary has none for it.
        embeddings: token embeddings, float [vocab_size, width].
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
        vectors: one per word, float [words, width].
        pieces: the token ids of each word.
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


def augmented_rows(
    records: Sequence[Record], similar: SimilarWords, copies: int, shares: FloatArray, seed: int
) -> list[Record]:
    """Return copies of rows, without labels but scores, in which words are replaced by similar ones at random.

    A copy that equals its row, as in scripts without spaces between words, is left out.

    Args:
        records: rows.
        similar: replacements.
        copies: copies of each row, on average.
        shares: how many copies each row has of them, see `shares_of_copies`.
        seed: seed of all choices.

    Returns:
        The copies in rounds, each of which has as many as there are rows, about, in the order of the rows.
    """
    random = np.random.default_rng(seed)
    phases = random.random(len(records))
    copied: list[Record | None] = []
    for turn in range(copies):
        counts = np.floor(phases + (turn + 1) * shares) - np.floor(phases + turn * shares)
        for record, count in zip(records, counts.astype(int).tolist(), strict=True):
            copied += [_changed(record, similar, random) for _ in range(count)]
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
    # A score tells pairs to embed from queries and answers, which have prompts.
    kept = {name: record.fields[name] for name in ("score",) if name in record.fields}
    return replace(record, fields=fields | kept) if fields != inputs else None


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
