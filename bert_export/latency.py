"""Latency of variants on batches and of models on texts, to choose between them; `bert-export bench` measures more."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task, TextInput
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch

__all__ = ["TIMED_SHAPES", "fastest_calls_ms", "median_latencies_ms"]

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
        runs: functions that run one batch, by name.
        task: the task, which makes the token ids valid.
        max_tokens: longer shapes are shortened to this.
        rounds: calls of each function per shape.
        shapes: batch size × tokens.

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


def fastest_calls_ms(
    calls: Mapping[Any, Callable[[TextInput], object]], texts: Sequence[TextInput], rounds: int
) -> dict[Any, list[float]]:
    """Time models on texts, one at a time, in turn and round after round.

    Other processes only ever add time, so the fastest call counts: medians of a machine that trained meanwhile made two
    narrow layers slower than two wide ones. Each timed call follows one that is not: the caches hold the data of the
    last model otherwise.

    Args:
        calls: run a model on one text, by name.
        texts: typical inputs.
        rounds: timed calls of each model for each text.

    Returns:
        By name, the milliseconds of the fastest call for each text.
    """
    times_ms: dict[Any, list[float]] = {name: [] for name in calls}
    for text in texts:
        fastest_s = dict.fromkeys(calls, float("inf"))
        for _ in range(rounds):
            for name, call in calls.items():
                call(text)
                start = time.perf_counter()
                call(text)
                fastest_s[name] = min(fastest_s[name], time.perf_counter() - start)
        for name, seconds in fastest_s.items():
            times_ms[name].append(seconds * 1e3)
    return times_ms
