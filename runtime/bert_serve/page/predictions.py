"""Answer a request of the page: results, the tokens that the model read, and times."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bert_runtime import Model
from bert_runtime.batching.streaming import EncodedInput
from bert_runtime.errors import InputError
from bert_runtime.tasks import Outputs
from bert_serve.page.display import display_results
from bert_serve.page.tokens import display_tokens

__all__ = ["MAX_CHARACTERS", "MAX_INPUTS", "check_size", "predict"]

MAX_INPUTS = 32
"""Texts of a request of the page. The heat map of more is too small to read."""

MAX_CHARACTERS = 50_000
"""Characters of a request of the page, about ten pages of a book. A judgement."""

_MAX_RUNS = 15
_MAX_RUNS_S = 0.2
"""The graph runs until it has run so often or so long; the median of its times is shown. With 5 runs beside
other work of the machine, INT8 once looked slower than FP32."""


def check_size(inputs: Sequence[Mapping[str, str]], max_inputs: int = MAX_INPUTS) -> None:
    """Raise `InputError` for more text than the page takes, or more texts than the server does."""
    max_inputs = min(max_inputs, MAX_INPUTS)
    if len(inputs) > max_inputs:
        raise InputError(f"expected at most {max_inputs} texts on this page, found {len(inputs)}")
    if (found := sum(len(text) for value in inputs for text in value.values())) > MAX_CHARACTERS:
        raise InputError(f"expected at most {MAX_CHARACTERS:,} characters on this page, found {found:,}")


def predict(
    model: Model, encoded: Sequence[EncodedInput], options: Mapping[str, Any], tokenize_ms: float
) -> dict[str, Any]:
    """Run a model on tokenized inputs, several times, and return the page's answer.

    Args:
        model: the model.
        encoded: the inputs and their tokens.
        options: decoding options of the task.
        tokenize_ms: how long tokenization took.
    """
    task = model.task.with_options(**options)
    outputs, times_ms = _timed_runs(model, encoded)
    start = time.perf_counter()
    results = list(map(task.decode, outputs))
    decode_ms = (time.perf_counter() - start) * 1e3
    return {
        "result": display_results(results, task),
        "inputs": [display_tokens(item, model) for item in outputs],
        "times_ms": {"tokenize": tokenize_ms, "inference": median(times_ms), "decode": decode_ms},
        "num_runs": len(times_ms),
    }


def _timed_runs(model: Model, encoded: Sequence[EncodedInput]) -> tuple[list[Outputs], list[float]]:
    times_ms: list[float] = []
    end = time.perf_counter() + _MAX_RUNS_S
    while len(times_ms) < _MAX_RUNS and (not times_ms or time.perf_counter() < end):
        start = time.perf_counter()
        outputs = model.encoded_outputs(encoded)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return outputs, times_ms
