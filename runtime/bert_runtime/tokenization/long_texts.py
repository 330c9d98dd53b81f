"""Shorten long texts before tokenization, without changing the ids that truncation leaves.

A tokenizer reads a whole text before it truncates it. That takes about 140 bytes of memory per character, and for a
pair time and memory that grow with the product of both lengths. Tokenizers of the BERT family are local: a character
changes the tokens of its word and of the neighbouring words only. So growing parts of a text are tokenized until all
tokens that truncation keeps come before the last few words of the part.
"""

import re
import unicodedata
from collections.abc import Iterator

from tokenizers import Encoding, Tokenizer

__all__ = ["TextShortener"]

_UNDECIDED_WORDS = 3
"""Words next to the cut whose tokens may change: GPT-2 splits `they're` in two, and `they'r` in three."""

_UNDECIDED_CHARACTERS = 32
"""Characters next to the cut whose tokens may change, plus the length of the longest added token."""

_CHARACTERS_PER_TOKEN = 8
"""Size of the first part per token to keep. English has 4 to 5 characters per token."""

_GROWTH = 4
"""Factor from one part to the next: a text that is needed whole is tokenized 1.33 times."""

_CHUNK_CHARACTERS = 4096

_WORD_END = re.compile(r"(?<=\S)\s")


class TextShortener:
    """Drops the parts of long texts that truncation would drop. Safe to call from many threads.

    A text without word boundaries that the tokenizer knows, such as one word of a million letters, stays whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer whose truncation is set, and which is not reconfigured any more."""
        longest = max((len(token.content) for token in tokenizer.get_added_tokens_decoder().values()), default=0)
        self._tokenizer = tokenizer
        self._from_left = (tokenizer.truncation or {}).get("direction") == "left"
        self._margin = _UNDECIDED_CHARACTERS + longest

    def is_long(self, text: str, tokens: int) -> bool:
        """Return whether `text` is so long that shortening it to `tokens` tokens can save time."""
        return len(text) > 2 * (_CHARACTERS_PER_TOKEN * tokens + self._margin)

    def shorten(self, text: str, tokens: int) -> str:
        """Return the part of a text that determines the `tokens` tokens that truncation keeps."""
        return self._shorten(text, tokens)[0]

    def shorten_pair(self, first: str, second: str, tokens: int) -> tuple[str, str]:
        """Return the parts of both texts that determine the `tokens` tokens that truncation keeps of the pair.

        The strategy is the library's longest-first. Where both texts exceed their half of an odd number of tokens, the
        one that has more tokens keeps the odd one, so the longer part is that of the longer text.
        """
        (first_part, first_count), (second_part, second_count) = (
            self._shorten(text, tokens) for text in (first, second)
        )
        is_whole = (first_part, second_part) == (first, second)
        if is_whole or tokens % 2 == 0 or min(first_count, second_count) < tokens:
            return first_part, second_part
        if self._has_more_tokens(first, second):
            if first_count <= second_count:
                first_part = self.shorten(first, second_count + 1)
        elif first_count > second_count:
            second_part = self.shorten(second, first_count)
        return first_part, second_part

    def _shorten(self, text: str, tokens: int) -> tuple[str, int]:
        """Return the part of a text that determines `tokens` tokens, and the number of tokens in it."""
        size = _CHARACTERS_PER_TOKEN * tokens + self._margin
        while size < len(text):
            part = self._part(text, size)
            pieces = self._tokenize(part)
            if self._count_decided(part, pieces) >= tokens:
                return part, sum(map(len, pieces))
            size *= _GROWTH
        return text, sum(map(len, self._tokenize(text)))

    def _part(self, text: str, size: int) -> str:
        """Return at least `size` characters of the side that truncation keeps, never cut before a combining mark."""
        step, cut = (-1, len(text) - size) if self._from_left else (1, size)
        while 0 < cut < len(text) and unicodedata.combining(text[cut]):
            cut += step
        return text[cut:] if self._from_left else text[:cut]

    def _tokenize(self, text: str) -> list[Encoding]:
        """Return the tokens of a text without special tokens, in pieces of at most the truncation length."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [encoding, *encoding.overflowing]

    def _count_decided(self, part: str, pieces: list[Encoding]) -> int:
        """Return how many tokens of a part do not depend on the text that was cut off."""
        tokens = [
            (word, start, end)
            for piece in pieces
            for word, (start, end) in zip(piece.word_ids, piece.offsets, strict=True)
            if word is not None
        ]
        if not tokens:
            return 0
        if self._from_left:
            return sum(word >= _UNDECIDED_WORDS and start >= self._margin for word, start, _ in tokens)
        last_word, last_end = max(tokens)[0] - _UNDECIDED_WORDS, len(part) - self._margin
        return sum(word <= last_word and end <= last_end for word, _, end in tokens)

    def _has_more_tokens(self, first: str, second: str) -> bool:
        """Return whether `first` has more tokens than `second`, reading neither beyond the end of the shorter one."""
        counts = self._token_counts(first), self._token_counts(second)
        totals = [0, 0]
        while True:
            behind = int(totals[1] < totals[0])
            count = next(counts[behind], None)
            if count is None:  # the text that is behind has ended
                return totals[0] > totals[1]
            totals[behind] += count

    def _token_counts(self, text: str) -> Iterator[int]:
        """Yield the token counts of successive chunks, cut at word ends, where every tokenizer splits."""
        start = 0
        while start < len(text):
            found = _WORD_END.search(text, min(start + _CHUNK_CHARACTERS, len(text)))
            end = found.start() if found else len(text)
            yield sum(map(len, self._tokenize(text[start:end])))
            start = end
