"""Grouping inputs of different lengths so that little work goes into padding."""

from collections.abc import Iterator, Sequence

__all__ = ["length_sorted_batches", "parallel_batches"]

_LEAST_TOKENS = 32
"""Of a run that is made smaller so that another may run beside it; below, a run is mostly overhead."""


def length_sorted_batches(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Indices of `lengths` in batches, longest first, each of at most `max_batch_tokens` padded tokens.

    Every index appears once. A sequence longer than the budget is a batch of its own. Longest first, so that the
    largest memory need comes at once and not at the end.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        rows = max(1, max_batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + rows]
        start += rows


def parallel_batches(lengths: Sequence[int], max_batch_tokens: int, inter_threads: int) -> list[list[int]]:
    """`length_sorted_batches` for runs side by side: smaller ones, if there would be fewer than can run at a time."""
    if inter_threads == 1:
        return list(length_sorted_batches(lengths, max_batch_tokens))
    share = -(-sum(lengths) // inter_threads)
    return list(length_sorted_batches(lengths, min(max_batch_tokens, max(share, _LEAST_TOKENS))))
