"""Texts to padded id arrays: a `tokenizers.Tokenizer` that is configured once and then only read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from bert_runtime.errors import BundleError, InputError
from bert_runtime.tasks import TextInput

__all__ = ["Batch", "TextTokenizer", "as_text_input", "pad"]

IntArray = NDArray[np.int64]


class Batch(NamedTuple):
    """Right-padded sequences: three int64 arrays [B, S], `attention_mask` 1 at real tokens and 0 at padding."""

    input_ids: IntArray
    attention_mask: IntArray
    token_type_ids: IntArray


def as_text_input(value: Any) -> TextInput:
    """What a caller passed as one input: a text, a tuple of two texts, or a mapping of `text` and `text_pair`.

    Raises `InputError` for anything else.
    """
    if isinstance(value, str):
        return TextInput(value)
    if isinstance(value, TextInput) and isinstance(value.text, str) and isinstance(value.text_pair, str | None):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return TextInput(*value)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        pair = value.get("text_pair")
        if pair is None or isinstance(pair, str):
            return TextInput(value["text"], pair)
    raise InputError(
        "expected a text, a tuple of two texts, or a dict with 'text' and optionally 'text_pair'; "
        f"found {type(value).__name__}: {value!r:.60}"
    )


class TextTokenizer:
    """Tokenizes and truncates. Safe to call from many threads.

    Truncation is set here once and padding happens in NumPy: reconfiguring a `Tokenizer` while another thread encodes
    raises `Already borrowed`.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, pad_token_id: int) -> None:
        least = tokenizer.num_special_tokens_to_add(is_pair=True) + 1
        if max_tokens < least:  # below, the tokenizer silently does not truncate at all
            raise InputError(
                f"max_tokens must be at least {least}, one more than a pair's special tokens, found {max_tokens}"
            )
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
        self.max_tokens = max_tokens
        self.pad_token_id = pad_token_id
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: str | Path, max_tokens: int, pad_token_id: int) -> "TextTokenizer":
        """Reads `tokenizer.json`; raises `BundleError` when it cannot be used."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise BundleError(f"{path}: not a tokenizer file: {error}") from None
        return cls(tokenizer, max_tokens, pad_token_id)

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, truncation included."""
        self._tokenizer.save(str(path))

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, inputs: Sequence[TextInput], first: int = 0) -> list[Encoding]:
        """One encoding per input, truncated to `max_tokens`.

        Raises `InputError` naming an input that cannot be encoded, counted from `first`.
        """
        try:
            if len(inputs) == 1:  # the batch call starts threads, which one text does not repay
                return [self._tokenizer.encode(*inputs[0])]
            return self._tokenizer.encode_batch_fast([_pair_or_text(each) for each in inputs])
        except (TypeError, UnicodeEncodeError):
            raise _find_bad_input(inputs, first) from None


def _pair_or_text(value: TextInput) -> str | tuple[str, str]:
    return value.text if value.text_pair is None else (value.text, value.text_pair)


def _find_bad_input(inputs: Sequence[TextInput], first: int) -> InputError:
    """The error for the first input that is not valid Unicode text."""
    for index, value in enumerate(inputs, start=first):
        for text in (value.text, value.text_pair or ""):
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                return InputError(
                    f"input {index} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character "
                    f"{error.start}, which no text encoding can express; replace it with: "
                    "text.encode('utf-8', 'replace').decode()"
                )
    return InputError("the tokenizer refused these inputs")


def pad(encodings: Sequence[Encoding], pad_token_id: int) -> Batch:
    """Encodings as one right-padded batch, as wide as the longest of them."""
    if len(encodings) == 1:  # nothing to pad: spares the copies on the path that latency is judged by
        only = encodings[0]
        ids = np.array([only.ids], dtype=np.int64)
        return Batch(ids, np.ones_like(ids), np.array([only.type_ids], dtype=np.int64))
    shape = len(encodings), max(map(len, encodings))
    batch = Batch(np.full(shape, pad_token_id, dtype=np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    for row, encoding in enumerate(encodings):
        length = len(encoding)
        batch.input_ids[row, :length] = encoding.ids
        batch.attention_mask[row, :length] = 1
        batch.token_type_ids[row, :length] = encoding.type_ids
    return batch
