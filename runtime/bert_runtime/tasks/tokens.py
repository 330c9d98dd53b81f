"""Tokens and their character offsets: merging of windows, and alignment of tokens with words.

Shared by the tasks that predict something for parts of a text.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tokenizers import Encoding

from bert_runtime.numerics import FloatArray, IntArray
from bert_runtime.records import Record
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.values import Outputs, TextInput, WindowedText

__all__ = [
    "TextTokens",
    "TokenTask",
    "answer_token_span",
    "drop_padding",
    "find_first_tokens",
    "first_visible",
    "join_words",
    "kept_token_indices",
    "merge_windows",
    "text_token_indices",
    "window_overlap",
    "word_spans",
    "word_vectors",
]


def window_overlap(max_tokens: int) -> int:
    """Return how many tokens two neighbouring windows share: a quarter, so that no token lacks context in both."""
    return max_tokens // 4


class TokenTask(Task):
    """A task with a prediction for every token of one text of any length."""

    windows: ClassVar[WindowedText | None] = "text"
    has_output_per_token: ClassVar[bool] = True

    @property
    def reads_first_token_only(self) -> bool:
        """Every token has a prediction."""
        return False

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        return drop_padding(array, encodings)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        """Return the words of a row as one text, or the row's text."""
        return (join_words(record.tokens())[0] if "tokens" in record.fields else TextInput(record.text()),)


class TextTokens(NamedTuple):
    """The T tokens of one text in order, merged from all windows; special tokens only if they were asked for."""

    offsets: IntArray
    """Start and end character of each token, the end exclusive: int64 [T, 2]."""
    word_ids: IntArray
    """Index of the word that each token is part of, as the tokenizer splits words; -1 for special tokens: int64 [T]."""
    strings: tuple[str, ...]
    """The T tokens as the vocabulary spells them."""
    indices: IntArray
    """Index of each token in the window that its values are taken from, special tokens included: int64 [T]."""
    values: FloatArray
    """Raw outputs for each token: float32 [T, …]."""

    @property
    def word_starts(self) -> IntArray:
        """Index of the first token of each word: int64 [W]."""
        return np.flatnonzero(np.diff(self.word_ids, prepend=-1))


def text_token_indices(encoding: Encoding, sequence: int = 0) -> IntArray:
    """Return the indices of the tokens of one text of an input, without special tokens.

    Args:
        encoding: one window of the input.
        sequence: 0 for the first text, 1 for the second.

    Returns:
        Indices into the window: int64 [T].
    """
    return np.array([i for i, found in enumerate(encoding.sequence_ids) if found == sequence], dtype=np.int64)


def drop_padding(array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
    """Split an output per token [B, S, …] into one array [tokens, …] per encoding, without padding at the end."""
    return [sequence[: len(encoding)] for sequence, encoding in zip(array, encodings, strict=True)]


def kept_token_indices(outputs: Outputs, sequence: int = 0) -> list[IntArray]:
    """Select the tokens to use of each window, such that every token of a text is used exactly once.

    Of two windows, a shared token is taken from the one in which it is farther from the edge, and so has more context.

    Args:
        outputs: the outputs for one input.
        sequence: 0 for the first text, 1 for the second.

    Returns:
        For each window, indices into it: int64.
    """
    shared = window_overlap(len(outputs.encodings[0]))  # with several windows, the first has the maximum length
    last = len(outputs.encodings) - 1
    kept = []
    for number, encoding in enumerate(outputs.encodings):
        indices = text_token_indices(encoding, sequence)
        end = len(indices) - (shared - shared // 2 if number < last else 0)
        kept.append(indices[shared // 2 if number else 0 : end])
    return kept


def merge_windows(outputs: Outputs, *, special_tokens: bool = False) -> TextTokens:
    """Merge the windows of an input into the tokens of its first text, see `kept_token_indices`.

    Args:
        outputs: the outputs for one input.
        special_tokens: keep the special tokens before the text, from the first window, and those after it, from the
            last.
    """
    kept_tokens = kept_token_indices(outputs)
    if special_tokens:
        kept_tokens = _with_special_tokens(outputs.encodings, kept_tokens)
    windows = list(zip(outputs.encodings, kept_tokens, outputs.arrays, strict=True))
    offsets = [np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[kept] for encoding, kept, _ in windows]
    word_ids = [i for encoding, kept, _ in windows for i in _select(encoding.word_ids, kept)]
    return TextTokens(
        offsets=np.concatenate(offsets),
        word_ids=np.array([-1 if i is None else i for i in word_ids] if special_tokens else word_ids, np.int64),
        strings=tuple(token for encoding, kept, _ in windows for token in _select(encoding.tokens, kept)),
        indices=np.concatenate([kept for _, kept, _ in windows]),
        values=np.concatenate([array[kept] for _, kept, array in windows]),
    )


def _with_special_tokens(encodings: Sequence[Encoding], kept: Sequence[IntArray]) -> list[IntArray]:
    """Add the special tokens at the beginning of the first window and at the end of the last."""
    found = list(kept)
    first = text_token_indices(encodings[0])
    start = int(first[0]) if len(first) else 0
    found[0] = np.concatenate([np.arange(start), found[0]])
    last = text_token_indices(encodings[-1])
    end = int(last[-1]) + 1 if len(last) else 0
    found[-1] = np.concatenate([found[-1], np.arange(end, len(encodings[-1]))])
    return found


def word_spans(offsets: IntArray, starts: IntArray) -> IntArray:
    """Return the start and end character of each word: int64 [W, 2].

    Args:
        offsets: start and end character of T tokens, without special tokens: [T, 2].
        starts: index of the first token of each word: [W].
    """
    last = np.append(starts[1:], len(offsets))[: len(starts)] - 1
    return np.stack([offsets[starts, 0], offsets[last, 1]], axis=1)


def word_vectors(values: FloatArray, starts: IntArray, *, mean: bool) -> FloatArray:
    """Return a vector for each word: the mean of its tokens' values, or the first one.

    Args:
        values: those of T tokens, without special tokens: [T, H].
        starts: index of the first token of each word: [W].
        mean: whether to take the mean.

    Returns:
        float32 [W, H].
    """
    if not mean or not len(starts):
        return values[starts]
    counts = np.diff(starts, append=len(values))
    sums: FloatArray = np.add.reduceat(values, starts, axis=0)
    return sums / counts[:, None].astype(sums.dtype)


def _select(values: Sequence[Any], indices: IntArray) -> list[Any]:
    return [values[i] for i in indices]


def join_words(words: Sequence[str]) -> tuple[TextInput, IntArray]:
    """Join W words with single spaces.

    Args:
        words: the words.

    Returns:
        The text, and the start and end character of each word in it: int64 [W, 2].
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return TextInput(" ".join(words)), np.stack([ends - [len(word) for word in words], ends], axis=1)


def first_visible(text: str, start: int, end: int) -> int:
    """Return the index of the first character of a span that is no white space; `start` where all of it is.

    Tokens of DeBERTa's tokenizer include the space before a word.
    """
    visible = len(text[start:end].lstrip())
    return end - visible if visible else start


def find_first_tokens(offsets: IntArray, words: IntArray) -> IntArray:
    """Find the first token of each word by character offsets.

    Args:
        offsets: start and end character of each token, in order: [T, 2].
        words: start and end character of each word: [W, 2].

    Returns:
        Token indices [W]; -1 for a word that the tokenizer drops, such as one of control characters.
    """
    if not len(offsets):
        return np.full(len(words), -1)
    found = np.searchsorted(offsets[:, 1], words[:, 0], side="right")
    known = found < len(offsets)
    known &= offsets[np.minimum(found, len(offsets) - 1), 0] < words[:, 1]
    return np.where(known, found, -1)


def answer_token_span(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Find the first and the last token of the characters `start` to `end` of the context in a window.

    Args:
        encoding: the window.
        start: index of the first character.
        end: index after the last character.

    Returns:
        Two token indices; (0, 0) where the window does not contain the whole answer. Token 0 is the first special
        token, which stands for "no answer" (Devlin et al., arXiv:1810.04805, section 4.3).
    """
    indices = text_token_indices(encoding, sequence=1)
    offsets = np.array(encoding.offsets)[indices]
    inside = indices[(offsets[:, 1] > start) & (offsets[:, 0] < end)]
    if not len(inside) or offsets[0, 0] > start or offsets[-1, 1] < end:
        return 0, 0
    return int(inside[0]), int(inside[-1])
