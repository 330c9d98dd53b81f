"""Tokens and their texts, as TEI's `/tokenize` and `/decode` give them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from bert_runtime.errors import InputError
from bert_runtime.tokenization import TextTokenizer, Token
from bert_serve.errors import TextTooLongError

__all__ = ["texts_of_ids", "tokens_of_texts"]

_MAX_CHARACTERS = 200_000
"""Characters of all texts that are tokenized at once: each token becomes an object. A judgement."""

_MAX_IDS = 200_000
"""Token ids of all texts that are decoded at once. A judgement."""


def tokens_of_texts(tokenizer: TextTokenizer, texts: Sequence[str], special_tokens: bool) -> list[list[Token]]:
    """Return all tokens of each text, with their places in UTF-8 bytes.

    Args:
        tokenizer: the model's tokenizer.
        texts: the texts.
        special_tokens: whether to add those around a text.

    Raises:
        TextTooLongError: the texts together are too long.
        InputError: the tokenizer cannot encode a text.
    """
    if (found := sum(map(len, texts))) > _MAX_CHARACTERS:
        raise TextTooLongError(f"expected at most {_MAX_CHARACTERS:,} characters in all, found {found:,}")
    return [list(_in_bytes(text, tokenizer.all_tokens(text, special_tokens=special_tokens))) for text in texts]


def _in_bytes(text: str, tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield tokens with places in UTF-8 bytes instead of characters."""
    if text.isascii():
        yield from tokens
        return
    places = [0, *accumulate(len(character.encode()) for character in text)]
    for token in tokens:
        if token.start is None or token.stop is None:
            yield token
        else:
            yield replace(token, start=places[token.start], stop=places[token.stop])


def texts_of_ids(tokenizer: TextTokenizer, sequences: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
    """Return the text of each list of token ids.

    Raises:
        TextTooLongError: there are too many ids.
        InputError: the vocabulary lacks an id.
    """
    if (found := sum(map(len, sequences))) > _MAX_IDS:
        raise TextTooLongError(f"expected at most {_MAX_IDS:,} token ids in all, found {found:,}")
    most = tokenizer.vocab_size - 1
    for index, ids in enumerate(sequences):
        if ids and not 0 <= min(ids) <= max(ids) <= most:
            raise InputError(f"expected token ids in 0 to {most}, found {min(ids)} to {max(ids)}", index)
    return [tokenizer.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]
