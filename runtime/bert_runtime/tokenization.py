"""Texts to padded id arrays: a `tokenizers.Tokenizer` that is configured once and then only read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from bert_runtime.errors import BundleError, InputError
from bert_runtime.numerics import IntArray
from bert_runtime.tasks import TextInput, WindowedText
from bert_runtime.tasks.tokens import window_overlap

__all__ = ["Batch", "TextTokenizer", "as_text_input", "check_batch", "check_ids", "pad"]


_TEXT_NAMES = frozenset(("text", "text_pair", "pair", "question", "context"))
"""What callers call texts in a dict; what does not belong to the others would be left out without a word."""

_UNKNOWN = ("[UNK]", "<unk>")
"""How vocabularies of this family spell what they do not know."""


class Batch(NamedTuple):
    """Right-padded sequences: three int64 arrays [B, S], `attention_mask` 1 at real tokens and 0 at padding."""

    input_ids: IntArray
    attention_mask: IntArray
    token_type_ids: IntArray


def check_batch(batch: Batch, limits: Mapping[str, int]) -> None:
    """Raises `InputError` unless the arrays are int64 of one shape [B, S], with a row at least and ids in their limits.

    ONNX Runtime would take negative ids from the end of the table, and repeat a mask that has one row.
    """
    for name, array in batch._asdict().items():
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 2 or not array.size:
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise InputError(f"expected {name} to be an int64 array [batch, tokens] with a row or more, found {found}")
        if array.shape != batch.input_ids.shape:
            raise InputError(
                f"expected {name} of the shape of input_ids, {list(batch.input_ids.shape)}, found {list(array.shape)}"
            )
    check_ids(batch, limits)


def check_ids(batch: Batch, limits: Mapping[str, int]) -> None:
    """Raises `InputError` for an id outside 0 to its limit − 1, which would be looked up beyond the table's ends."""
    for name, limit in limits.items():
        array: IntArray = getattr(batch, name)
        if int(array.view(np.uint64).max(initial=0)) >= limit:  # read as unsigned, negative ids are large ones
            low, high = int(array.min()), int(array.max())
            raise InputError(f"{name} must lie in 0 to {limit - 1}, found {low if low < 0 else high}")


def as_text_input(value: Any) -> TextInput:
    """What a caller passed as one input: a text, a tuple of two texts, or a mapping of their names.

    These are `text` and optionally `text_pair`, or `question` and `context`. Raises `InputError` for anything else.
    """
    if isinstance(value, str):
        return TextInput(value)
    if isinstance(value, TextInput) and isinstance(value.text, str) and isinstance(value.text_pair, str | None):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return TextInput(*value)
    if isinstance(value, dict):
        names = ("question", "context") if "question" in value else ("text", "text_pair")
        text, pair = (value.get(name) for name in names)
        if isinstance(text, str) and isinstance(pair, str | None):
            if strange := sorted((_TEXT_NAMES - set(names)) & value.keys()):  # a row's label or number does no harm
                raise InputError(f"expected texts called {' and '.join(names)}, found also {', '.join(strange)}")
            return TextInput(text, pair)
    raise InputError(
        "expected a text, a tuple of two texts, or a dict with 'text' and optionally 'text_pair', "
        "or with 'question' and 'context'; "
        f"found {type(value).__name__}: {value!r:.60}"
    )


class TextTokenizer:
    """Tokenizes and truncates, or cuts into windows. Safe to call from many threads.

    Truncated is the end of a text, or its beginning where the tokenizer says so.

    Truncation is set here once and padding happens in NumPy: reconfiguring a `Tokenizer` while another thread encodes
    raises `Already borrowed`.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, pad_token_id: int, windows: WindowedText | None = None
    ) -> None:
        least = tokenizer.num_special_tokens_to_add(is_pair=True) + 1
        if max_tokens < least:  # below, the tokenizer silently does not truncate at all
            raise InputError(
                f"max_tokens must be at least {least}, one more than a pair's special tokens, found {max_tokens}"
            )
        tokenizer.no_padding()
        if windows is None:
            side = (tokenizer.truncation or {}).get("direction", "right")  # which `tokenizer.json` keeps
            tokenizer.enable_truncation(max_tokens, direction=side)
        else:
            strategy = "only_second" if windows == "text_pair" else "only_first"
            tokenizer.enable_truncation(max_tokens, stride=window_overlap(max_tokens), strategy=strategy)
        self.windows = windows
        """Which of an input's texts is read in overlapping windows; the others are never truncated then."""
        self.max_tokens = max_tokens
        self.pad_token_id = pad_token_id
        self._tokenizer = tokenizer

    @classmethod
    def from_file(
        cls, path: str | Path, max_tokens: int, pad_token_id: int, windows: WindowedText | None = None
    ) -> "TextTokenizer":
        """Reads `tokenizer.json`; raises `BundleError` when it cannot be used."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise BundleError(f"{path}: not a tokenizer file: {error}") from None
        return cls(tokenizer, max_tokens, pad_token_id, windows)

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, truncation included."""
        self._tokenizer.save(str(path))

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def num_special_tokens(self) -> int:
        """Special tokens around a single text."""
        return self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_ids(self, word: str) -> list[int]:
        """The tokens of a word as it stands inside a text, without special tokens, or the entry of that spelling.

        A word is looked up after a space: byte-level vocabularies have another entry for the start of a text. None for
        what the vocabulary cannot express.
        """
        try:
            encoding = self._tokenizer.encode(f" {word}", add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate
            return []
        known = self._tokenizer.token_to_id(word)
        if len(encoding) != 1 and known is not None:
            return [known]
        unknown = any(token in _UNKNOWN for token in encoding.tokens) and word not in _UNKNOWN
        return [] if unknown or not word.strip() else encoding.ids

    def encode(self, inputs: Sequence[TextInput], first: int = 0) -> list[tuple[Encoding, ...]]:
        """The windows of each input: one, truncated to `max_tokens`, or for a task that reads long texts several.

        Raises `InputError` naming an input that cannot be encoded, counted from `first`.
        """
        try:
            self._check_windows(inputs, first)
            if len(inputs) == 1:  # the batch call starts threads, which one text does not repay
                encodings = [self._tokenizer.encode(*inputs[0])]
            elif self.windows is None:
                encodings = self._tokenizer.encode_batch_fast([_pair_or_text(each) for each in inputs])
            else:  # the fast call leaves out the offsets that windows are put together by
                encodings = self._tokenizer.encode_batch([_pair_or_text(each) for each in inputs])
        except (TypeError, UnicodeEncodeError):
            raise _find_bad_input(inputs, first) from None
        if self.windows is None:
            return [(each,) for each in encodings]
        return [(each, *each.overflowing) for each in encodings]

    def _check_windows(self, inputs: Sequence[TextInput], first: int) -> None:
        """Raises `InputError` for inputs that cannot be cut into windows: where the tokenizer would panic."""
        if self.windows is None:
            return
        wanted, found = ("a pair of texts", "one") if self.windows == "text_pair" else ("one text", "a pair")
        for index, value in enumerate(inputs, start=first):
            if (value.text_pair is None) == (self.windows == "text_pair"):
                raise InputError(f"input {index}: expected {wanted}, found {found}")
        if self.windows == "text":
            return
        room = (
            self.max_tokens
            - self._tokenizer.num_special_tokens_to_add(is_pair=True)
            - window_overlap(self.max_tokens)
            - 1
        )
        for index, value in enumerate(inputs, start=first):
            if (found_tokens := self._num_tokens(value.text)) > room:
                raise InputError(
                    f"input {index}: the first text has {found_tokens} tokens; expected at most {room}, so that "
                    f"windows of {self.max_tokens} tokens have room for the second"
                )

    def _num_tokens(self, text: str) -> int:
        """Tokens of a text of any length, without special ones: as the second of a pair it is cut, and nothing lost."""
        encoding = self._tokenizer.encode("", text, add_special_tokens=False)
        overlaps = len(encoding.overflowing) * window_overlap(self.max_tokens)
        return len(encoding) + sum(map(len, encoding.overflowing)) - overlaps


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
