"""Pairs that share texts, such as a query with its documents: every text is tokenized once.

A document that does not fit beside its query is truncated as the tokenizer itself would, or cut into overlapping
windows of it, each behind the whole query.
"""

from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Encoding

from bert_runtime.errors import InputError
from bert_runtime.tasks import TextInput
from bert_runtime.tasks.tokens import window_overlap
from bert_runtime.tokenization.pair_joining import JoinedPair, PairJoiner
from bert_runtime.tokenization.text_tokenizer import MAX_WINDOWED_CHARACTERS, TextTokenizer
from bert_runtime.tokenization.tokenizer_errors import invalid_unicode, tokenizer_errors

__all__ = ["encode_pairs"]


def encode_pairs(
    tokenizer: TextTokenizer, pairs: Sequence[TextInput], first: int = 0, *, windows: bool
) -> list[tuple[Encoding, ...]]:
    """Tokenize N pairs, of which texts may repeat; equal to `TextTokenizer.encode` where a pair fits.

    Args:
        tokenizer: a tokenizer that truncates.
        pairs: the pairs.
        first: the number that an error gives the first pair.
        windows: whether second texts that do not fit are cut into windows; else the pair is truncated.

    Returns:
        For each pair one window of at most `max_tokens`, or several.

    Raises:
        InputError: names a pair that has one text only, or that cannot be encoded.
    """
    _check_pairs(pairs, first, windows=windows)
    if not windows:
        pairs = [tokenizer.shortened(pair) for pair in pairs]
    joiner, texts = tokenizer.pair_joiner, list(dict.fromkeys(text for pair in pairs for text in _both(pair)))
    try:
        with tokenizer_errors(InputError, "the tokenizer cannot encode the text"):
            ids = dict(zip(texts, joiner.all_ids(texts) if texts else [], strict=True))
    except InputError:
        for index, pair in enumerate(pairs, start=first):
            _check_unicode(pair, index)
        raise
    join = _windows if windows else _truncated
    overlap = window_overlap(tokenizer.max_tokens)
    joined = [join(joiner, ids[text], ids[second], overlap) for text, second in map(_both, pairs)]
    # A joined pair has what reranking and batching read of an encoding: `ids`, `type_ids`, `overflowing`, a length.
    return [tuple(cast(Encoding, window) for window in windows) for windows in joined]


def _both(pair: TextInput) -> tuple[str, str]:
    return pair.text, cast(str, pair.text_pair)  # `_check_pairs` found both


def _check_pairs(pairs: Sequence[TextInput], first: int, *, windows: bool) -> None:
    """Raise `InputError` for a pair of one text only, or one too long to be read whole."""
    for index, pair in enumerate(pairs, start=first):
        if pair.text_pair is None:
            raise InputError("expected a query and a document, found one text", index)
        if windows and (size := max(map(len, _both(pair)))) > MAX_WINDOWED_CHARACTERS:
            raise InputError(
                f"expected at most {MAX_WINDOWED_CHARACTERS:,} characters, since all of the text is read, "
                f'found {size:,}; divide it, or set long_documents="truncate"',
                index,
            )


def _check_unicode(pair: TextInput, index: int) -> None:
    """Raise `InputError` for a text that is not valid Unicode."""
    try:
        for text in _both(pair):
            text.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid_unicode([pair], index) from None


def _truncated(joiner: PairJoiner, first: Sequence[int], second: Sequence[int], overlap: int) -> Iterator[JoinedPair]:
    """Yield the pair, truncated as the library does with its strategy "longest first"."""
    room, total = joiner.max_text_tokens, len(first) + len(second)
    if total <= room:
        yield joiner.join(first, second)
        return
    shorter = min(len(first), len(second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    num_first, num_second = (longer, shorter) if len(first) > len(second) else (shorter, longer)
    yield joiner.join(joiner.truncate(first, num_first), joiner.truncate(second, num_second), truncated=True)


def _windows(joiner: PairJoiner, first: Sequence[int], second: Sequence[int], overlap: int) -> Iterator[JoinedPair]:
    """Yield the pair, or windows of its second text that share `overlap` tokens with the next one.

    Of a first text that takes more than half of the room, the rest is dropped, if the second needs it.
    """
    if len(first) + len(second) <= joiner.max_text_tokens:
        yield joiner.join(first, second)
        return
    kept = joiner.truncate(first, max(joiner.max_text_tokens // 2, joiner.max_text_tokens - len(second)))
    room = joiner.max_text_tokens - len(kept)
    step = room - min(overlap, room - 1)
    for start in range(0, max(1, len(second) - (room - step)), step):
        yield joiner.join(kept, second[start : start + room], truncated=len(kept) < len(first))
