"""Join texts that are tokenized once into pairs: one text with N others costs N + 1 tokenizations, not 2 N.

A tokenizer encodes the two texts of a pair each on its own, and puts special tokens around and between them. So the
tokens of a text alone, without its special tokens, are those that it has in any pair, up to truncation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

from bert_runtime.errors import InputError
from bert_runtime.tokenization.tokenizer_errors import tokenizer_errors
from bert_runtime.tokenization.word_memory import WordMemory, all_ids

__all__ = ["JoinedPair", "PairJoiner"]

_MIN_PROBED_TOKENS = 8
"""Room that the template is tried in: no tokenizer truncates two letters and another one to this."""


class _Specials(NamedTuple):
    """Special tokens at one of the three places of a pair."""

    ids: list[int]
    type_ids: list[int]


class _Template(NamedTuple):
    """The parts of a pair that do not depend on its texts: `before`, first text, `between`, second text, `after`."""

    before: _Specials
    first_type_id: int
    between: _Specials
    second_type_id: int
    after: _Specials


@dataclass(frozen=True, slots=True)
class JoinedPair:
    """A tokenized pair of texts, in the place of a `tokenizers.Encoding`.

    The parts are joined when they are read, so that N pairs of one text hold its tokens once.
    """

    template: _Template
    first: Sequence[int]
    """Token ids of the first text, without special tokens."""
    second: Sequence[int]
    """Token ids of the second text, without special tokens."""
    truncated: bool = False
    """Whether these are not all tokens of both texts."""

    def __len__(self) -> int:
        before, _, between, _, after = self.template
        return len(before.ids) + len(self.first) + len(between.ids) + len(self.second) + len(after.ids)

    @property
    def ids(self) -> list[int]:
        """Token ids of the pair, special tokens included."""
        before, _, between, _, after = self.template
        return [*before.ids, *self.first, *between.ids, *self.second, *after.ids]

    @property
    def type_ids(self) -> list[int]:
        """The token type of each token: which text it belongs to, in families that tell."""
        before, first, between, second, after = self.template
        return [
            *before.type_ids,
            *[first] * len(self.first),
            *between.type_ids,
            *[second] * len(self.second),
            *after.type_ids,
        ]

    @property
    def overflowing(self) -> tuple[None, ...]:
        """Not empty where the pair is truncated, as of an `Encoding`."""
        return (None,) if self.truncated else ()


class PairJoiner:
    """Joins tokenized texts into pairs, with the special tokens that the tokenizer puts into a pair.

    Args:
        tokenizer: the tokenizer, which is not reconfigured any more.
        max_tokens: longest sequence in tokens, special tokens included.
        memory: of the tokenizer's words; `None` for a tokenizer that has none.

    Raises:
        InputError: the tokenizer cannot encode a pair, or not as its first text before its second one.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, memory: WordMemory | None = None) -> None:
        self.max_text_tokens = max_tokens - tokenizer.num_special_tokens_to_add(is_pair=True)
        """Tokens that both texts of a pair may have together."""
        self._tokenizer = tokenizer
        self._memory = memory
        self._keeps_end = (tokenizer.truncation or {}).get("direction") == "left"
        with tokenizer_errors(InputError, "the tokenizer cannot encode a pair of letters"):
            self._template = _read_template(tokenizer.encode("a", "b"))
            mask = tokenizer.encode("a").special_tokens_mask
            probe = tokenizer.encode("a a", "b") if self.max_text_tokens >= _MIN_PROBED_TOKENS else None
        self._num_before, self._num_after = (_num_leading_special(side) for side in (mask, mask[::-1]))
        if probe is not None:
            joined = self.join(*self.all_ids(["a a", "b"]))
            if (joined.ids, joined.type_ids) != (probe.ids, probe.type_ids):
                raise InputError(
                    "expected a tokenizer that puts a pair together as its first text, then its second one, found "
                    f"{probe.tokens} for 'a a' and 'b'; change the template of its post-processor"
                )

    def text_ids(self, encoding: Encoding) -> list[int]:
        """Return the token ids of a text that was encoded alone, without the special tokens around it."""
        return encoding.ids[self._num_before : len(encoding) - self._num_after]

    def all_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts of any length, without special tokens and without truncation.

        Args:
            texts: the texts; the tokenizer must truncate them without overlap, as it does unless it makes windows.
        """
        memory = self._memory
        if memory is None or len(texts) > memory.max_texts:
            return self._ask_for_ids(texts)
        found = list(map(memory.ids, texts))
        others = iter(self._ask_for_ids([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [next(others) if ids is None else ids for ids in found]

    def _ask_for_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return what `all_ids` does, from the library."""
        if len(texts) <= 1:  # the batch call starts threads, which does not pay off for one text
            encodings = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        else:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [all_ids(encoding, keeps_end=self._keeps_end) for encoding in encodings]

    def truncate(self, ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return the first `num_tokens` ids at most, or the last ones where the tokenizer drops the beginning."""
        return ids[max(0, len(ids) - num_tokens) :] if self._keeps_end else ids[:num_tokens]

    def join(self, first: Sequence[int], second: Sequence[int], *, truncated: bool = False) -> JoinedPair:
        """Return two tokenized texts as a pair; nothing is dropped here.

        Args:
            first: ids of the first text, see `text_ids`.
            second: ids of the second text; both together have at most `max_text_tokens`.
            truncated: whether the caller has dropped tokens.
        """
        return JoinedPair(self._template, first, second, truncated)


def _num_leading_special(mask: Sequence[int]) -> int:
    return len(list(takewhile(bool, mask)))


def _read_template(pair: Encoding) -> _Template:
    """Return the template from the encoding of any pair whose texts have one token or more each."""
    sequences = pair.sequence_ids
    first, second = sequences.index(0), sequences.index(1)
    num_first, num_second = sequences.count(0), sequences.count(1)

    def specials(start: int, stop: int | None) -> _Specials:
        return _Specials(pair.ids[start:stop], pair.type_ids[start:stop])

    return _Template(
        specials(0, first),
        pair.type_ids[first],
        specials(first + num_first, second),
        pair.type_ids[second],
        specials(second + num_second, None),
    )
