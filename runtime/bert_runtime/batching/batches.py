"""Batches of inputs of similar length, so that little work goes into padding."""

from collections.abc import Iterator, Sequence

__all__ = ["length_sorted_batches", "parallel_batches"]

_MIN_PARALLEL_TOKENS = 32
"""Minimum padded tokens per batch when batches are split to fill parallel sessions.

Smaller ones are dominated by overhead. A judgement.
"""


def length_sorted_batches(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of `lengths` in batches of at most `max_batch_tokens` padded tokens, longest sequences first.

    Every index appears once. A sequence longer than the budget is a batch of its own. The longest come first so that
    the largest memory need shows at once and not at the end.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    start = 0
    while start < len(order):
        batch_size = max(1, max_batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + batch_size]
        start += batch_size


def parallel_batches(lengths: Sequence[int], max_batch_tokens: int, inter_threads: int) -> list[list[int]]:
    """Return `length_sorted_batches`, made smaller if there would be fewer than `inter_threads` of them."""
    if inter_threads == 1:
        return list(length_sorted_batches(lengths, max_batch_tokens))
    tokens_per_thread = -(-sum(lengths) // inter_threads)
    return list(length_sorted_batches(lengths, min(max_batch_tokens, max(tokens_per_thread, _MIN_PARALLEL_TOKENS))))
