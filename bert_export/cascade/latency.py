"""Latency of a cascade and its models, one text at a time."""

import time
from collections.abc import Sequence

import numpy as np

from bert_export.calibration_texts import spread
from bert_runtime.cascade import Cascade
from bert_runtime.tasks import TextInput

__all__ = ["measure_latency"]

_MAX_TEXTS = 200
"""Texts that are timed, evenly spread over the file, which may be sorted by label. A judgement."""

_ROUNDS = 3
"""Timed calls of each model for each text. Other processes only ever add time, so the fastest counts."""


def measure_latency(cascade: Cascade, texts: Sequence[TextInput]) -> dict[str, dict[str, float]]:
    """Time single texts in turn on the small model, on the large one, and on the cascade.

    Each timed call follows one that is not: the caches hold the data of the last model otherwise.

    Returns:
        By model, and for `cascade`: mean, median (`p50`), 99th percentile and maximum in milliseconds.
    """
    models = {"small": cascade.small, "large": cascade.large, "cascade": cascade}
    times_ms: dict[str, list[float]] = {name: [] for name in models}
    for text in spread(texts, _MAX_TEXTS):
        fastest_s = dict.fromkeys(models, float("inf"))
        for _ in range(_ROUNDS):
            for name, model in models.items():
                model(text)
                start = time.perf_counter()
                model(text)
                fastest_s[name] = min(fastest_s[name], time.perf_counter() - start)
        for name, seconds in fastest_s.items():
            times_ms[name].append(seconds * 1e3)
    return {name: _summary(values) for name, values in times_ms.items()}


def _summary(times_ms: Sequence[float]) -> dict[str, float]:
    median, p99, largest = np.percentile(times_ms, (50, 99, 100)).tolist()
    summary = {"mean": float(np.mean(times_ms)), "p50": median, "p99": p99, "max": largest}
    return {name: round(value, 4) for name, value in summary.items()}
