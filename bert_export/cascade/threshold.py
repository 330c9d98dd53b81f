"""The choice of a cascade's threshold on labelled rows."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from bert_export.paired_bootstrap import is_within, ratio_parts
from bert_runtime.cascade.task import CascadeTask, confidence
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Example, Outputs, stack_single_window

__all__ = ["Threshold", "choose_threshold"]

_CANDIDATES = 200
"""Thresholds that are tried: quantiles of the small model's confidence."""

_RESAMPLES = 200
"""Resamples of the rows for the standard error of a drop."""


class Threshold(NamedTuple):
    """A threshold, and what it gives on the rows that it was chosen on."""

    value: float
    """Least confidence of the small model with which its answer counts."""
    small_share: float
    """Share of the texts that the small model answers."""
    large: float
    """Task metric of the large model."""
    found: float
    """Task metric of the cascade."""
    drop_percent: float
    """Loss of the cascade, in percent of the large model's metric; negative where it has more."""
    drop_error: float
    """Standard error of `drop_percent`, over resamples of the rows that both are measured on."""


def choose_threshold(
    task: CascadeTask, small: Sequence[Outputs], large: Sequence[Outputs], examples: Sequence[Example], max_drop: float
) -> tuple[Threshold, bool]:
    """Choose the threshold with which the small model answers most texts, by fixed-sequence testing.

    Thresholds are tried from the highest, with which the large model answers almost everything, and the first one over
    the limit ends the search (Angelopoulos et al., Learn then Test, arXiv:2110.01052). The lowest of all those within
    the limit is often there by chance: in 100 random splits of 2,370 rows of SST-2 into halves, its cascade passed the
    gate on the other half 66 times, and that of the sequence 82 times.

    Args:
        task: the task of the cascade.
        small: outputs of the small model for N texts, as the cascade decodes them.
        large: those of the large one.
        examples: the labelled texts.
        max_drop: largest drop of the task metric, in percent of the large model's.

    Returns:
        The last threshold before a drop and its standard error together exceed `max_drop`, and true: with the drop
        alone, that on other rows would exceed the limit about as often as not. Without any, that of the smallest drop,
        and false.
    """
    sure = confidence(task, stack_single_window(small))
    small_parts, large_parts = (ratio_parts(task, outputs, examples) for outputs in (small, large))
    assert small_parts is not None, "accuracy and F1 are ratios of sums"
    assert large_parts is not None, "as above"
    rows = len(examples)
    counts = np.vstack(
        [np.ones(rows, np.int64), np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), _RESAMPLES)]
    )
    reference = _ratios(counts @ large_parts)
    found: list[Threshold] = []
    for value in np.unique(np.quantile(sure, np.linspace(0, 1, _CANDIDATES), method="lower")).tolist():
        kept = sure >= value
        metrics = _ratios(counts @ np.where(kept[:, None], small_parts, large_parts))
        drops = 100 * (reference - metrics) / np.maximum(reference, np.finfo(np.float64).tiny)
        found.append(
            Threshold(
                value,
                float(kept.mean()),
                float(reference[0]),
                float(metrics[0]),
                float(drops[0]),
                float(drops[1:].std()),
            )
        )
    allowed = list(
        takewhile(lambda threshold: is_within(threshold.drop_percent + threshold.drop_error, max_drop), reversed(found))
    )
    if allowed:
        return allowed[-1], True
    return min(found, key=lambda threshold: threshold.drop_percent), False


def _ratios(totals: FloatArray) -> FloatArray:
    """Return the metrics [R] of numerators and denominators [R, 2], the first of all rows, the others of resamples."""
    ratios: FloatArray = totals[:, 0] / np.maximum(totals[:, 1], 1e-12)
    return ratios
