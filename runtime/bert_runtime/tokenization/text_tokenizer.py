"""Texts to token ids: a `tokenizers.Tokenizer` that is configured once and only read afterwards."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from tokenizers import Encoding, Tokenizer

from bert_runtime.errors import BundleError, InputError
from bert_runtime.inputs import texts_of
from bert_runtime.tasks import TextInput, WindowedText
from bert_runtime.tasks.tokens import window_overlap
from bert_runtime.tokenization.all_tokens import Token, all_tokens
from bert_runtime.tokenization.long_texts import TextShortener
from bert_runtime.tokenization.pair_joining import JoinedPair, PairJoiner
from bert_runtime.tokenization.tokenizer_errors import (
    invalid_unicode,
    is_tokenizer_error,
    suppress_tokenizer_errors,
    tokenizer_errors,
)
from bert_runtime.tokenization.word_memory import TextIds, WordMemory

__all__ = ["MAX_WINDOWED_CHARACTERS", "UNKNOWN_TOKENS", "TextTokenizer"]

_BATCH_CALL_CHARACTERS = 10_000
"""Length of a single text from which on it is tokenized by the batch call. That starts threads, which does not pay off
for a short text, but lets go of the GIL meanwhile. A judgement."""

MAX_WINDOWED_CHARACTERS = 1_000_000
"""Longest input of a task that reads all of a text in windows: 140 MB of memory in the tokenizer, 1,000 windows of 256
tokens. Texts of other tasks are truncated and may be longer. A judgement."""

_CHARACTERS_PER_TOKEN = 8
"""Texts with more of them than this for each token that they may have are left to the library, which truncates."""

UNKNOWN_TOKENS = ("[UNK]", "<unk>")
"""Unknown tokens of the vocabularies of this family."""


class TextTokenizer:
    """A tokenizer that truncates, or cuts long texts into overlapping windows.

    Truncation drops the end of a text, or its beginning where the tokenizer's own settings say so.

    Safe to call from many threads: truncation is configured here once, and padding is done in NumPy. Reconfiguring a
    `Tokenizer` while another thread encodes raises `Already borrowed`.

    Args:
        tokenizer: the tokenizer, which this object owns from now on.
        max_tokens: longest sequence in tokens, special tokens included.
        pad_token_id: the id that `pad` fills with.
        windows: the text of an input that is cut into windows; `None` truncates.

    Raises:
        InputError: `max_tokens` leaves no room for text.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_tokens: int, pad_token_id: int, windows: WindowedText | None = None
    ) -> None:
        min_tokens = tokenizer.num_special_tokens_to_add(is_pair=True) + 1
        if max_tokens < min_tokens:  # with less, the tokenizer silently does not truncate at all
            raise InputError(
                f"max_tokens must be at least {min_tokens}, one more than a pair's special tokens, found {max_tokens}"
            )
        tokenizer.no_padding()
        if windows is None:
            side = (tokenizer.truncation or {}).get("direction", "right")  # as `tokenizer.json` says
            tokenizer.enable_truncation(max_tokens, direction=side)
        else:
            strategy = "only_second" if windows == "text_pair" else "only_first"
            tokenizer.enable_truncation(max_tokens, stride=window_overlap(max_tokens), strategy=strategy)
        self.windows = windows
        """The text of an input that is cut into overlapping windows; then nothing is truncated."""
        self.max_tokens = max_tokens
        """Longest sequence in tokens, special tokens included."""
        self.pad_token_id = pad_token_id
        self._tokenizer = tokenizer
        self._shortener = TextShortener(tokenizer)
        self._single_tokens, self._pair_tokens = (
            max_tokens - tokenizer.num_special_tokens_to_add(is_pair=is_pair) for is_pair in (False, True)
        )

    @classmethod
    def from_file(
        cls, path: str | Path, max_tokens: int, pad_token_id: int, windows: WindowedText | None = None
    ) -> "TextTokenizer":
        """Read `tokenizer.json`; raise `BundleError` where it is not a tokenizer file."""
        with tokenizer_errors(BundleError, f"{path}: not a tokenizer file"):
            return cls(Tokenizer.from_file(str(path)), max_tokens, pad_token_id, windows)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, truncation included."""
        self._tokenizer.save(str(path))

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def num_special_tokens(self) -> int:
        """Special tokens around a single text."""
        return self._tokenizer.num_special_tokens_to_add(is_pair=False)

    @cached_property
    def special_ends(self) -> tuple[int | None, int | None]:
        """The ids of the special tokens that a sequence begins and ends with; `None` where there is none."""
        encoding = self._tokenizer.encode("a")
        first, last = (encoding.ids[end] if encoding.special_tokens_mask[end] else None for end in (0, -1))
        return first, last

    @property
    def truncation_side(self) -> str:
        """The end of a long text that is dropped, `left` or `right`; windows drop nothing."""
        return str((self._tokenizer.truncation or {}).get("direction", "right"))

    @cached_property
    def pair_joiner(self) -> PairJoiner:
        """Joins texts that are tokenized once into pairs."""
        return PairJoiner(self._tokenizer, self.max_tokens, self._word_memory)

    def all_tokens(self, text: str, *, special_tokens: bool = True) -> list[Token]:
        """Return all tokens of a text of any length, without truncation; raise `InputError` where that fails."""
        with tokenizer_errors(InputError, "the tokenizer cannot encode the text"):
            return all_tokens(self._tokenizer, text, self.max_tokens, self.windows, special_tokens=special_tokens)

    def end_of_tokens(self, text: str, num_tokens: int) -> int:
        """Return the index after the last character of a text's first tokens; its length if it has no more than these.

        Raises:
            InputError: the text cannot be encoded.
        """
        part = text
        if self.truncation_side == "right" and self._shortener.is_long(text, num_tokens):
            with tokenizer_errors(InputError, "the tokenizer cannot encode the text"):
                part = self._shortener.shorten(text, num_tokens)
        tokens = self.all_tokens(part, special_tokens=False)
        last = tokens[num_tokens - 1] if len(tokens) >= num_tokens else None
        return len(text) if last is None or last.stop is None else last.stop

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it; for an id beyond the vocabulary, which models may have, `#id`."""
        token = self._tokenizer.id_to_token(token_id)
        return f"#{token_id}" if token is None else token

    def token_ids(self, word: str) -> list[int]:
        """Return the token ids of a word inside a text, without special tokens.

        The word is encoded after a space, since byte-level vocabularies have another entry for the start of a text. If
        that gives several tokens, a vocabulary entry that is spelled like the word takes precedence. Empty where the
        vocabulary cannot express the word.
        """
        try:
            encoding = self._tokenizer.encode(f" {word}", add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate
            return []
        known = self._tokenizer.token_to_id(word)
        if len(encoding) != 1 and known is not None:
            return [known]
        unknown = any(token in UNKNOWN_TOKENS for token in encoding.tokens) and word not in UNKNOWN_TOKENS
        return [] if unknown or not word.strip() else encoding.ids

    @cached_property
    def _word_memory(self) -> WordMemory | None:
        with suppress_tokenizer_errors():  # `encode` reports them
            return WordMemory.of(self._tokenizer)
        return None

    def encode_ids(self, inputs: Sequence[TextInput], first: int = 0) -> list[tuple[Encoding, ...]]:
        """Return what `encode` returns, sooner, for a caller that reads `ids`, `type_ids`, `overflowing` and lengths.

        Where the task cuts texts into windows, all of an encoding can be read.

        Args:
            inputs: the texts.
            first: the number that an error gives the first input.

        Raises:
            InputError: names an input that cannot be encoded.
        """
        memory = None if self.windows is not None else self._word_memory
        if memory is None or len(inputs) > memory.max_texts:
            return self.encode(inputs, first)
        found = [self._remembered(memory, value) for value in inputs]
        others = [value for value, item in zip(inputs, found, strict=True) if item is None]
        try:
            rest = iter(self.encode(others) if others else ())
        except InputError:
            return self.encode(inputs, first)  # names the input by its place among all
        return [next(rest) if item is None else (cast(Encoding, item),) for item in found]

    def _remembered(self, memory: WordMemory, value: TextInput) -> TextIds | JoinedPair | None:
        """Return an input from the memory of words, or `None` where the library must be asked for it."""
        text, pair = value
        if max(len(text), len(pair or "")) > _CHARACTERS_PER_TOKEN * self.max_tokens:
            return None
        with suppress_tokenizer_errors():  # `encode` reports them
            return memory.encode(text, self.max_tokens) if pair is None else self._join(text, pair)
        return None

    def _join(self, text: str, text_pair: str) -> JoinedPair | None:
        """Return a pair that fits from its words, or `None`."""
        joiner = self.pair_joiner
        first, second = joiner.all_ids([text, text_pair])
        return joiner.join(first, second) if len(first) + len(second) <= joiner.max_text_tokens else None

    def encode(self, inputs: Sequence[TextInput], first: int = 0) -> list[tuple[Encoding, ...]]:
        """Return the windows of each input: one of at most `max_tokens`, or several for a task that reads long texts.

        Args:
            inputs: the texts.
            first: the number that an error gives the first input.

        Raises:
            InputError: names an input that cannot be encoded.
        """
        try:
            self._check_windows(inputs, first)
            inputs = [self.shortened(value) for value in inputs]
            if len(inputs) == 1 and sum(map(len, texts_of(inputs[0]))) <= _BATCH_CALL_CHARACTERS:
                encodings = [self._tokenizer.encode(*inputs[0])]
            elif len(inputs) == 1 or self.windows is not None:
                encodings = self._tokenizer.encode_batch([_pair_or_text(value) for value in inputs])
            else:  # the fast call leaves out the offsets, by which windows are merged
                encodings = self._tokenizer.encode_batch_fast([_pair_or_text(value) for value in inputs])
        except (TypeError, UnicodeEncodeError):
            raise invalid_unicode(inputs, first) from None
        except InputError:
            raise
        except BaseException as error:  # such as for unknown words without an unknown token
            if not is_tokenizer_error(error):
                raise
            raise InputError(
                f"the tokenizer cannot encode the text: {error!s:.300}; check its tokenizer.json"
            ) from None
        if self.windows is None:
            return [(encoding,) for encoding in encodings]
        return [(encoding, *encoding.overflowing) for encoding in encodings]

    def shortened(self, value: TextInput) -> TextInput:
        """Return the parts of long texts that determine what truncation keeps; what is cut into windows stays whole."""
        text, pair = value
        if pair is None:
            if self.windows is None and self._shortener.is_long(text, self._single_tokens):
                return TextInput(self._shortener.shorten(text, self._single_tokens))
        elif self.windows is None and any(self._shortener.is_long(part, self._pair_tokens) for part in (text, pair)):
            return TextInput(*self._shortener.shorten_pair(text, pair, self._pair_tokens))
        return value

    def _check_windows(self, inputs: Sequence[TextInput], first: int) -> None:
        """Raise `InputError` for inputs that cannot be cut into windows: the tokenizer would panic."""
        if self.windows is None:
            return
        for index, value in enumerate(inputs, start=first):
            if (size := max(map(len, filter(None, value)), default=0)) > MAX_WINDOWED_CHARACTERS:
                raise InputError(
                    f"expected at most {MAX_WINDOWED_CHARACTERS:,} characters, since all of the text is read, "
                    f"found {size:,}; divide it into several inputs",
                    index,
                )
        expected, found = ("a pair of texts", "one") if self.windows == "text_pair" else ("one text", "a pair")
        for index, value in enumerate(inputs, start=first):
            if (value.text_pair is None) == (self.windows == "text_pair"):
                raise InputError(f"expected {expected}, found {found}", index)
        if self.windows == "text":
            return
        num_special = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        room = self.max_tokens - num_special - window_overlap(self.max_tokens) - 1
        for index, value in enumerate(inputs, start=first):
            if (num_tokens := self._num_tokens(value.text)) > room:
                raise InputError(
                    f"the first text has {num_tokens} tokens; expected at most {room}, so that windows of "
                    f"{self.max_tokens} tokens have room for the second",
                    index,
                )

    def _num_tokens(self, text: str) -> int:
        """Count the tokens of a text of any length, without special tokens.

        It is encoded as the second text of a pair, which is cut into windows and so loses nothing.
        """
        encoding = self._tokenizer.encode("", text, add_special_tokens=False)
        overlaps = len(encoding.overflowing) * window_overlap(self.max_tokens)
        return len(encoding) + sum(map(len, encoding.overflowing)) - overlaps


def _pair_or_text(value: TextInput) -> str | tuple[str, str]:
    return value.text if value.text_pair is None else (value.text, value.text_pair)
