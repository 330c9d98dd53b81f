"""Sequences of token ids that a client has tokenized itself."""

from collections.abc import Sequence

from bert_runtime.errors import InputError
from bert_runtime.tokenization.word_memory import TextIds
from bert_serve.errors import TextTooLongError

__all__ = ["TokenIds", "check_token_ids"]


class TokenIds(TextIds):
    """A sequence of token ids that a client has sent; no text is known."""

    __slots__ = ()


def check_token_ids(
    sequences: Sequence[Sequence[int]], vocab_size: int, max_tokens: int, ends: tuple[int | None, int | None]
) -> None:
    """Check ids before a graph looks them up.

    Args:
        sequences: token ids of each sequence.
        vocab_size: ids lie in 0 to this minus 1.
        max_tokens: longest sequence.
        ends: the special tokens that a sequence begins and ends with, `None` where there is none. Ids of another
            tokenizer do not, by which they are known.

    Raises:
        InputError: a sequence is empty, holds an id out of range, or lacks the special tokens.
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
        for where, expected, found in zip(("first", "last"), ends, (ids[0], ids[-1]), strict=True):
            if expected not in (None, found):
                raise InputError(
                    f"expected token ids with this model's special tokens, {expected} {where}, found {found}: are they "
                    "of another tokenizer? send texts (in LangChain, check_embedding_ctx_length=False), or the ids "
                    "that /tokenize gives",
                    index,
                )
