"""Token ids of texts word by word, from a memory of words: the part of BERT's tokenization that single texts wait for.

BERT's normalizer changes one character at a time, its pre-tokenizer cuts at white space and around punctuation, and
WordPiece divides each word on its own. So the ids of a word are the same in every text, and those of a text are the ids
of its words, one after another. The library also keeps track of where each token came from, which takes several times
as long; who needs that asks the library.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_runtime.machine import available_cores

__all__ = ["TextIds", "WordMemory", "all_ids"]

_FEW_TEXTS, _FEW_CORES = 16, 4
"""On more than so many cores, more than so many texts are for the library, which tokenizes on several threads. A
judgement: on two cores, Python took a third of the library's time for 16 to 512 texts."""
_MAX_WORDS, _MAX_CHARACTERS = 30_000, 24
"""Words that are remembered, and the longest of them, in characters and in tokens: 10,000 words of English take 4 MB,
and 30,000 words of 24 letters that are a token each 31 MB. A judgement."""
_MAX_SHARE = 0.25
"""Share of a text's words that the library must be asked for one by one, at most; it takes other texts as they are."""

# A word, or a punctuation character of ASCII. The library cuts words further at characters beyond ASCII.
_WORDS = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")


def all_ids(encoding: Encoding, *, keeps_end: bool) -> list[int]:
    """Return the ids of an encoding and of what truncation, without overlap, cut off it, in the order of the text.

    Args:
        encoding: the encoding.
        keeps_end: whether the tokenizer truncates the beginning.
    """
    if not encoding.overflowing:
        return encoding.ids
    pieces = [encoding, *encoding.overflowing]
    return [token for piece in (pieces[::-1] if keeps_end else pieces) for token in piece.ids]


@dataclass(frozen=True, slots=True)
class TextIds:
    """The token ids of one text that is not truncated, in the place of a `tokenizers.Encoding`."""

    ids: Sequence[int]
    """Token ids, special tokens included."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def type_ids(self) -> Sequence[int]:
        """The token type of each token: of a single text, 0."""
        return (0,) * len(self.ids)

    @property
    def overflowing(self) -> tuple[()]:
        """Empty, as of an `Encoding` that is not truncated."""
        return ()


class WordMemory(dict[str, tuple[int, ...]]):
    """The token ids of words, each asked of the tokenizer once. Safe to use from many threads.

    Args:
        tokenizer: a tokenizer of BERT's kind, see `of`, which is not reconfigured any more.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.max_texts = _FEW_TEXTS if available_cores() > _FEW_CORES else sys.maxsize
        """The library tokenizes more texts than these sooner."""
        self._tokenizer = tokenizer
        self._keeps_end = (tokenizer.truncation or {}).get("direction") == "left"
        self._model: WordPiece = tokenizer.model
        self._lowercase = bool(tokenizer.normalizer.lowercase)
        self._first, self._last = tokenizer.encode("").ids
        added = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._has_added_token = re.compile("|".join(map(re.escape, added))).search

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "WordMemory | None":
        """Return a memory of a tokenizer's words, or `None` for a tokenizer of another kind than BERT's."""
        is_bert = (
            isinstance(tokenizer.normalizer, BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and isinstance(tokenizer.model, WordPiece)
        )
        # Tokens with `normalized` are looked for in the normalized text, which this has not.
        added = tokenizer.get_added_tokens_decoder().values()
        if not is_bert or not added or any(token.normalized or not token.content for token in added):
            return None
        empty, probe = tokenizer.encode(""), tokenizer.encode("a")
        if len(empty) != 2 or any(probe.type_ids) or probe.special_tokens_mask != [1, *[0] * (len(probe) - 2), 1]:
            return None
        memory = cls(tokenizer)
        found = memory.encode("a", len(probe))
        return memory if found is not None and found.ids == probe.ids else None

    def __missing__(self, word: str) -> tuple[int, ...]:
        if word.isascii() and word.isprintable():
            ids = tuple(token.id for token in self._model.tokenize(word.lower() if self._lowercase else word))
        else:
            encoding = self._tokenizer.encode(word, add_special_tokens=False)
            ids = tuple(all_ids(encoding, keeps_end=self._keeps_end))
        if len(self) < _MAX_WORDS and max(len(word), len(ids)) <= _MAX_CHARACTERS:
            self[word] = ids
        return ids

    def ids(self, text: str) -> list[int] | None:
        """Return all token ids of a text, without special tokens around it, or `None` where the library must be asked.

        That is where the text holds a special token itself, or where a quarter of its words are not of ASCII.
        """
        if self._has_added_token(text):
            return None
        words = _WORDS.findall(text)
        if not text.isascii() and sum(not word.isascii() for word in words) > _MAX_SHARE * len(words):
            return None
        return list(chain.from_iterable(map(self.__getitem__, words)))

    def encode(self, text: str, max_tokens: int) -> TextIds | None:
        """Return a text with the special tokens around it, or `None` where the library must be asked.

        Args:
            text: the text.
            max_tokens: longest sequence in tokens, special tokens included; longer texts are for the library.
        """
        ids = self.ids(text)
        return None if ids is None or len(ids) > max_tokens - 2 else TextIds([self._first, *ids, self._last])
