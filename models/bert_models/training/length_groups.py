"""Short texts and long ones of a batch apart: a query has a tenth of the tokens of a document."""

from collections.abc import Sequence

__all__ = ["length_groups"]

_MIN_SAVED = 0.2
"""Share of a batch's padded tokens that two groups save at least: below, a second call costs more (a judgement)."""


def length_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Divide sequences into one group, or into the short ones and the long ones where that saves much padding.

    Args:
        lengths: tokens of each sequence, at least one.

    Returns:
        Indices of the sequences of each group, in order.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    longest, count = lengths[order[-1]], len(order)
    padded = {short: short * lengths[order[short - 1]] + (count - short) * longest for short in range(1, count)}
    best = min(padded, key=lambda short: padded[short], default=0)
    if not best or padded[best] > (1 - _MIN_SAVED) * count * longest:
        return [list(range(count))]
    return [sorted(order[:best]), sorted(order[best:])]
