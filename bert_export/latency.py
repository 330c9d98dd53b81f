"""A short interleaved timing, to choose between variants. `bert-export bench` is the thorough one."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.timing import interleaved_medians
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
        batch = Batch(task.valid_probe_ids(ones), ones, np.zeros_like(ones))
        seconds = interleaved_medians({name: partial(run, batch) for name, run in runs.items()}, rounds)
        for name, value in seconds.items():
            medians[name][f"{rows}x{tokens}"] = round(value * 1e3, 4)
    return medians
