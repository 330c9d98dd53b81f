"""Shared by the experiments: path options, interleaved timing and result files."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.conditions import arguments, current_conditions
from bert_bench.timing_statistics import Timing, paired_speedup, rotated, summarize
from bert_runtime.machine import available_cores
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.tokenization import Batch

__all__ = [
    "distinct_texts",
    "open_in_onnxruntime",
    "path_option",
    "time_full_batch",
    "time_interleaved",
    "training_options",
    "unfinished_result",
    "write_result",
]

_TOKEN_ID = 2000
"""Id of every token of a timed batch. Latency does not depend on ids; every BERT vocabulary has this one."""


def path_option(
    name: str, help_text: str, *, required: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator for an option that takes a path."""
    return click.option(name, type=click.Path(path_type=Path), required=required, help=help_text)


def training_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an experiment that trains on SQuAD, on request next to sentence-transformers."""
    options: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
        path_option("--base", "Checkpoint to start from."),
        path_option("--train", "SQuAD file to train on."),
        path_option("--test", "SQuAD file to judge on."),
        click.option("--lr", type=float, default=1e-4, show_default=True),
        click.option("--batch-size", type=int, default=16, show_default=True),
        click.option("--max-tokens", type=int, default=192, show_default=True, help="Tokens of a training sequence."),
        click.option("--seeds", type=int, default=2, show_default=True),
        click.option("--compare", is_flag=True, help="Train with sentence-transformers, too."),
        path_option("--folder", "Folder for data, checkpoints and bundles, which are kept."),
        path_option("--output", "Result file to write."),
    )
    for add in reversed(options):
        command = add(command)
    return command


def distinct_texts(path: Path, column: str, count: int, at_least: int) -> list[str]:
    """Read the first `count` different texts of a column, which is a name or a number from 0.

    Raises:
        click.ClickException: the file has fewer than `at_least`.
    """
    found = list(dict.fromkeys(record.text() for record in read_records(path, {"text": column})))[:count]
    if len(found) < at_least:
        raise click.ClickException(f"{path}: expected at least {at_least} different texts, found {len(found)}")
    return found


def open_in_onnxruntime(path: Path) -> Callable[[Batch], FloatArray]:
    """Open a graph as a user of ONNX Runtime does, with all of its optimizations and all cores; return what runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}

    def run(batch: Batch) -> FloatArray:
        outputs: list[FloatArray] = session.run(
            None, {name: array for name, array in batch._asdict().items() if name in names}
        )
        return outputs[0]

    return run


def write_result(path: Path, values: dict[str, Any], threads: int | None = None) -> None:
    """Write an experiment's result as JSON, with the machine, the versions and the command that made it.

    Args:
        path: file to write.
        values: the experiment's own keys. `conditions` is added.
        threads: threads of every engine. All available cores if `None`.

    """
    conditions = asdict(current_conditions(threads or available_cores()))
    conditions["argv"] = ("python", "-m", f"bert_bench.experiments.{Path(sys.argv[0]).stem}", *arguments())
    text = json.dumps({"conditions": conditions, **values}, indent=2, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)  # hours of measuring are not lost for want of a folder
    path.write_text(text + "\n", encoding="utf-8")


def unfinished_result(path: Path, request: dict[str, Any], lists: Sequence[str]) -> dict[str, Any]:
    """Return the result that an experiment goes on with, so that a long one can be measured in parts.

    Args:
        path: file of the result so far, which need not exist.
        request: sizes and settings, as keys of the result. One that has others is not gone on with.
        lists: keys whose values are lists of runs.

    """
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    request = json.loads(json.dumps(request))
    if any(found.get(key) != value for key, value in request.items()):
        return {**request, **{name: [] for name in lists}}
    return {key: value for key, value in found.items() if key != "conditions"}


def time_interleaved(functions: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, Timing]:
    """Time functions against each other.

    Every round times every function: one warm-up call, then `calls` timed ones. Each round starts with another one.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name in rotated(list(functions), turn):
            functions[name]()
            times = [time.perf_counter()]
            for _ in range(calls):
                functions[name]()
                times.append(time.perf_counter())
            samples[name].append([(end - start) * 1e3 for start, end in pairwise(times)])
    return {name: summarize(milliseconds) for name, milliseconds in samples.items()}


def time_full_batch(
    engines: Mapping[str, Callable[[Batch], object]], sequences: int, tokens: int, rounds: int, calls: int
) -> dict[str, dict[str, float]]:
    """Time engines on one batch without padding, interleaved.

    Args:
        engines: inference calls by name. The first one is the baseline.
        sequences: batch size.
        tokens: length of every sequence.
        rounds: rounds; see `time_interleaved`.
        calls: timed calls per engine and round.

    Returns:
        Per engine, `p50_ms` and `speedup`, the median over the rounds of the speed-up over the baseline.

    """
    ones = np.ones((sequences, tokens), dtype=np.int64)
    batch = Batch(ones * _TOKEN_ID, ones, ones * 0)
    timings = time_interleaved({name: partial(run, batch) for name, run in engines.items()}, rounds, calls)
    baseline = next(iter(timings.values()))
    return {
        name: {"p50_ms": round(timing.p50_ms, 4), "speedup": round(paired_speedup(timing, baseline).median, 3)}
        for name, timing in timings.items()
    }
