"""Differences of raw outputs from those of a reference."""

import numpy as np

from bert_runtime.numerics import FloatArray

__all__ = ["logit_drift"]


def logit_drift(found: FloatArray, expected: FloatArray) -> dict[str, float]:
    """Return the mean and the largest absolute difference of logits, of two arrays of one shape."""
    difference = np.abs(found - expected)
    return {"mean_abs_logit_drift": float(difference.mean()), "max_abs_logit_drift": float(difference.max())}
