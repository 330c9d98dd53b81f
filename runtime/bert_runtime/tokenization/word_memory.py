"""Token ids of texts word by word, from a memory of words: the part of BERT's tokenization that single texts wait for.

BERT's normalizer changes one character at a time, its pre-tokenizer cuts at white space and around punctuation, and
WordPiece divides each word on its own. So the ids of a word are the same in every text, and those of a text are the ids
of its words, one after another. The library also keeps track of where each token came from, which takes several times
as long; who needs that asks the library.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

__all__ = ["TextIds", "WordMemory", "word_memory"]

_MAX_WORDS = 30_000
"""Words that are remembered, about 6 MB: as many as a vocabulary has pieces. A judgement."""
_MAX_CHARACTERS = 64
"""Longest word that is remembered."""

# A word, or a punctuation character of ASCII. Words are cut further where other characters ask for it.
_WORDS = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")


@dataclass(frozen=True, slots=True)
class TextIds:
    """The token ids of a text that is not truncated, in the place of a `tokenizers.Encoding`."""

    ids: list[int]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def type_ids(self) -> list[int]:
        """The token type of each token: of a single text, 0."""
        return [0] * len(self.ids)

    @property
    def overflowing(self) -> tuple[()]:
        """Empty, as of an `Encoding` that is not truncated."""
        return ()


class WordMemory(dict[str, Sequence[int]]):
    """The token ids of words, each asked of the tokenizer once. Safe to use from many threads.

    Made by `word_memory`.

    Args:
        tokenizer: the tokenizer, which is not reconfigured any more.
        empty: the encoding of an empty text, two special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, empty: Encoding) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._model: WordPiece = tokenizer.model
        self._lowercase = bool(tokenizer.normalizer.lowercase)
        self._first, self._last = empty.ids
        added = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._has_added_token = re.compile("|".join(map(re.escape, added))).search

    def __missing__(self, word: str) -> Sequence[int]:
        if word.isascii() and word.isprintable():
            ids = [token.id for token in self._model.tokenize(word.lower() if self._lowercase else word)]
        else:
            encoding = self._tokenizer.encode(word, add_special_tokens=False)
            ids = [token for piece in (encoding, *encoding.overflowing) for token in piece.ids]
        if len(self) < _MAX_WORDS and len(word) <= _MAX_CHARACTERS:
            self[word] = ids
        return ids

    def encode(self, text: str, max_tokens: int) -> TextIds | None:
        """Return the token ids of a text, or `None` where the library must be asked.

        Args:
            text: the text. Special tokens in it are for the library.
            max_tokens: longest sequence in tokens, special tokens included; longer texts are for the library.
        """
        if self._has_added_token(text):
            return None
        ids = [self._first, *chain.from_iterable(map(self.__getitem__, _WORDS.findall(text))), self._last]
        return TextIds(ids) if len(ids) <= max_tokens else None


def word_memory(tokenizer: Tokenizer) -> WordMemory | None:
    """Return a memory of a tokenizer's words, or `None` for a tokenizer of another kind than BERT's."""
    is_bert = (
        isinstance(tokenizer.normalizer, BertNormalizer)
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and isinstance(tokenizer.model, WordPiece)
    )
    # Others are looked for in the normalized text. Without any, there would be nothing to put around a text.
    added = tokenizer.get_added_tokens_decoder().values()
    if not is_bert or not added or any(token.normalized or not token.content for token in added):
        return None
    empty, mask = tokenizer.encode(""), tokenizer.encode("a").special_tokens_mask
    if len(empty) != 2 or any(empty.type_ids) or mask[0] != 1 or mask[-1] != 1:
        return None
    return WordMemory(tokenizer, empty)
