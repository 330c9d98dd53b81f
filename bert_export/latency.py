"""Time the variants briefly, to choose between them; `bert-export bench` is the thorough benchmark."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch

__all__ = ["TIMED_SHAPES", "median_latencies_ms"]

TIMED_SHAPES = ((1, 16), (1, 128))
"""Batch size × tokens that are timed: a chat message and a paragraph (a judgement)."""


def median_latencies_ms(
    runs: Mapping[str, Callable[[Batch], FloatArray]],
    task: Task,
    max_tokens: int,
    rounds: int = 15,
    shapes: Sequence[tuple[int, int]] = TIMED_SHAPES,
) -> dict[str, dict[str, float]]:
    """Time functions in turn, round after round.

    Args:
        runs: Functions that run one batch, by name.
        task: The task, which makes the token ids valid.
        max_tokens: Longer shapes are shortened to this.
        rounds: Calls of each function per shape.
        shapes: Batch size × tokens.

    Returns:
        The median milliseconds per call, by name and shape (`1x128`).
    """
    medians: dict[str, dict[str, float]] = {name: {} for name in runs}
    for batch_size, tokens in shapes:
        tokens = min(tokens, max_tokens)
        ones = np.ones((batch_size, tokens), dtype=np.int64)
        batch = Batch(task.valid_probe_ids(ones), ones, np.zeros_like(ones))
        seconds = interleaved_medians({name: partial(run, batch) for name, run in runs.items()}, rounds)
        for name, median in seconds.items():
            medians[name][f"{batch_size}x{tokens}"] = round(median * 1e3, 4)
    return medians
