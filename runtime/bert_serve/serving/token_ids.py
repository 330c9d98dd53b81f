"""Sequences of token ids that a client has tokenized itself."""

from collections.abc import Sequence

from bert_runtime.errors import InputError
from bert_runtime.tokenization.word_memory import TextIds
from bert_serve.errors import TextTooLongError

__all__ = ["TokenIds", "check_token_ids"]


class TokenIds(TextIds):
    """A sequence of token ids that a client has sent; no text is known."""

    __slots__ = ()


def check_token_ids(sequences: Sequence[Sequence[int]], vocab_size: int, max_tokens: int) -> None:
    """Check ids before a graph looks them up.

    Args:
        sequences: token ids of each sequence.
        vocab_size: ids lie in 0 to this minus 1.
        max_tokens: longest sequence.

    Raises:
        InputError: a sequence is empty, or holds an id out of range.
        TextTooLongError: a sequence is too long.
    """
    for index, ids in enumerate(sequences):
        if not ids:
            raise InputError("expected token ids, found none", index)
        if len(ids) > max_tokens:
            raise TextTooLongError(f"input {index}: expected at most {max_tokens} tokens, found {len(ids)}")
        low, high = min(ids), max(ids)
        if low < 0 or high >= vocab_size:
            raise InputError(
                f"expected token ids of this model's vocabulary, 0 to {vocab_size - 1}, found "
                f"{low if low < 0 else high}; send texts, or the ids that /tokenize gives",
                index,
            )
