"""A short interleaved timing, to choose between variants. `bert-export bench` is the thorough one."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from bert_runtime.tasks import FloatArray, Task
from bert_runtime.tokenization import Batch

__all__ = ["SHAPES", "median_latencies_ms"]

SHAPES = ((1, 16), (1, 128))
"""Batch × tokens that are timed: a chat message and a paragraph."""


def median_latencies_ms(
    runs: Mapping[str, Callable[[Batch], FloatArray]], task: Task, max_tokens: int, rounds: int = 15
) -> dict[str, dict[str, float]]:
    """Median milliseconds per call by name and shape (`1x128`), each round calling every one in turn."""
    medians: dict[str, dict[str, float]] = {name: {} for name in runs}
    for rows, tokens in SHAPES:
        tokens = min(tokens, max_tokens)
        ones = np.ones((rows, tokens), dtype=np.int64)
        batch = Batch(task.answerable(ones), ones, np.zeros_like(ones))
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                run(batch)  # the caches belong to the one that ran last
                start = time.perf_counter()
                run(batch)
                samples[name].append((time.perf_counter() - start) * 1e3)
        for name, values in samples.items():
            medians[name][f"{rows}x{tokens}"] = round(float(np.median(values)), 4)
    return medians
