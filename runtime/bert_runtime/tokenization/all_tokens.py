"""All tokens of a text of any length, with their places in it, from a tokenizer that truncates."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from tokenizers import Tokenizer

from bert_runtime.tasks import WindowedText
from bert_runtime.tasks.tokens import window_overlap

__all__ = ["Token", "all_tokens"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text."""

    id: int
    text: str
    """The characters that it stands for; of a special token, its name."""
    special: bool
    """Whether the tokenizer has added it to the text."""
    start: int | None
    """Index of its first character; `None` for a special token."""
    stop: int | None
    """Index after its last character; `None` for a special token."""


def all_tokens(
    tokenizer: Tokenizer, text: str, max_tokens: int, windows: WindowedText | None, *, special_tokens: bool
) -> list[Token]:
    """Return the tokens of a text as if there were no longest sequence.

    Args:
        tokenizer: a tokenizer that truncates, or cuts into windows.
        text: the text.
        max_tokens: its longest sequence.
        windows: the text of an input that it cuts into windows; `None`: it truncates.
        special_tokens: whether to add those around a single text.
    """
    if windows == "text_pair":  # the first text of a pair must not exceed a window
        encoding = tokenizer.encode("", text, add_special_tokens=False)
    else:
        encoding = tokenizer.encode(text, add_special_tokens=False)
    pieces = [encoding, *encoding.overflowing]
    if (tokenizer.truncation or {}).get("direction") == "left":
        pieces.reverse()
    overlap = 0 if windows is None else window_overlap(max_tokens)
    tokens = [
        Token(token_id, text[start:stop], special=False, start=start, stop=stop)
        for number, piece in enumerate(pieces)
        for token_id, (start, stop) in islice(
            zip(piece.ids, piece.offsets, strict=True), overlap if number else 0, None
        )
    ]
    if not special_tokens:
        return tokens
    special = list(_special_tokens(tokenizer))
    num_before = len(list(takewhile(bool, tokenizer.encode("a").special_tokens_mask)))
    return [*special[:num_before], *tokens, *special[num_before:]]


def _special_tokens(tokenizer: Tokenizer) -> Iterator[Token]:
    """Yield the tokens around a single text."""
    empty = tokenizer.encode("")
    for token_id, name in zip(empty.ids, empty.tokens, strict=True):
        yield Token(token_id, name, special=True, start=None, stop=None)
