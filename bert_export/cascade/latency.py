"""Latency of a cascade and its models, one text at a time."""

from collections.abc import Sequence

import numpy as np

from bert_export.calibration_texts import spread
from bert_export.latency import fastest_calls_ms
from bert_runtime.cascade import Cascade
from bert_runtime.tasks import TextInput

__all__ = ["measure_latency"]

_MAX_TEXTS = 200
"""Texts that are timed, evenly spread over the file, which may be sorted by label. A judgement."""

_ROUNDS = 3
"""Timed calls of each model for each text."""


def measure_latency(cascade: Cascade, texts: Sequence[TextInput]) -> dict[str, dict[str, float]]:
    """Time single texts in turn on the small model, on the large one, and on the cascade.

    Returns:
        By model, and for `cascade`: mean, median (`p50`), 99th percentile and maximum in milliseconds.
    """
    models = {"small": cascade.small, "large": cascade.large, "cascade": cascade}
    times_ms = fastest_calls_ms(models, spread(texts, _MAX_TEXTS), _ROUNDS)
    return {name: _summary(values) for name, values in times_ms.items()}


def _summary(times_ms: Sequence[float]) -> dict[str, float]:
    median, p99, largest = np.percentile(times_ms, (50, 99, 100)).tolist()
    summary = {"mean": float(np.mean(times_ms)), "p50": median, "p99": p99, "max": largest}
    return {name: round(value, 4) for name, value in summary.items()}
