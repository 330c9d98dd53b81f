"""Tokens and the characters they stand for: what the tasks that answer about parts of a text share."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tokenizers import Encoding

from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.records import Record
from bert_runtime.tasks.base import Outputs, Task, TextInput, WindowedText

__all__ = [
    "TextTokens",
    "TokenTask",
    "drop_padding",
    "find_first_tokens",
    "join_words",
    "kept_token_indices",
    "merge_windows",
    "text_token_indices",
    "window_overlap",
]


def window_overlap(max_tokens: int) -> int:
    """How many tokens two windows of a long text share: a quarter, so that no token is without context in both."""
    return max_tokens // 4


class TokenTask(Task):
    """A task that answers about every token of one text, of any length."""

    windows: ClassVar[WindowedText | None] = "text"

    @property
    def reads_first_token_only(self) -> bool:
        """Every token is answered about."""
        return False

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        return drop_padding(array, encodings)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """The words of a row as one text, or its text."""
        return (join_words(record.tokens())[0] if "tokens" in record.fields else TextInput(record.text()),)


class TextTokens(NamedTuple):
    """The T tokens of one text, in order and without special tokens, whichever windows they were read in."""

    offsets: IntArray
    """First character and the one after the last, of each token [T, 2]."""
    word_ids: IntArray
    """The number of the word that the tokenizer cut each token from [T]."""
    strings: tuple[str, ...]
    """The tokens as the vocabulary spells them."""
    indices: IntArray
    """Place of each token in the window that its values come from, special tokens counted [T]."""
    values: FloatArray
    """The model's raw outputs for each token [T, …]."""

    @property
    def word_starts(self) -> IntArray:
        """The first token of every word [W]."""
        return np.flatnonzero(np.diff(self.word_ids, prepend=-1))


def text_token_indices(encoding: Encoding, sequence: int = 0) -> IntArray:
    """Places of the tokens that belong to one text of an input, special tokens left out."""
    return np.array([i for i, each in enumerate(encoding.sequence_ids) if each == sequence], dtype=np.int64)


def drop_padding(array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
    """An output with a row per token [B, S, …] as one array [length, …] per encoding."""
    return [row[: len(encoding)] for row, encoding in zip(array, encodings, strict=True)]


def kept_token_indices(outputs: Outputs, sequence: int = 0) -> list[IntArray]:
    """For each window of an input, the places of one text's tokens that are to be taken from it: each token once.

    Two windows share tokens. Each of these is taken from the window in which it lies farther from the edge, and so was
    read with more of what surrounds it.
    """
    shared = window_overlap(len(outputs.encodings[0]))  # an input of several windows fills the first
    last = len(outputs.encodings) - 1
    kept = []
    for number, encoding in enumerate(outputs.encodings):
        places = text_token_indices(encoding, sequence)
        end = len(places) - (shared - shared // 2 if number < last else 0)
        kept.append(places[shared // 2 if number else 0 : end])
    return kept


def merge_windows(outputs: Outputs) -> TextTokens:
    """The tokens of an input's first text, see `kept_token_indices`."""
    parts = list(zip(outputs.encodings, kept_token_indices(outputs), outputs.arrays, strict=True))
    offsets = [np.array(each.offsets, dtype=np.int64).reshape(-1, 2)[kept] for each, kept, _ in parts]
    return TextTokens(
        offsets=np.concatenate(offsets),
        word_ids=np.array([word for each, kept, _ in parts for word in _picked(each.word_ids, kept)], dtype=np.int64),
        strings=tuple(token for each, kept, _ in parts for token in _picked(each.tokens, kept)),
        indices=np.concatenate([kept for _, kept, _ in parts]),
        values=np.concatenate([row[kept] for _, kept, row in parts]),
    )


def _picked(values: Sequence[Any], places: IntArray) -> list[Any]:
    return [values[i] for i in places]


def join_words(words: Sequence[str]) -> tuple[TextInput, IntArray]:
    """Words as the text that a model reads, one space between two, and the characters of each [W, 2]."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return TextInput(" ".join(words)), np.stack([ends - [len(word) for word in words], ends], axis=1)


def find_first_tokens(offsets: IntArray, words: IntArray) -> IntArray:
    """For words at characters `words` [W, 2], the first of the tokens at `offsets` [T, 2] that stands for some of it.

    → [W], -1 for a word that the tokenizer leaves out, such as one of control characters.
    """
    if not len(offsets):
        return np.full(len(words), -1)
    found = np.searchsorted(offsets[:, 1], words[:, 0], side="right")
    known = found < len(offsets)
    known &= offsets[np.minimum(found, len(offsets) - 1), 0] < words[:, 1]
    return np.where(known, found, -1)
