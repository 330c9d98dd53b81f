"""Measure what packed rows are worth: the same INT8 graph with rows of padding and without, on real texts.

python -m bert_bench.experiments.packed_rows --checkpoint CKPT --title NAME --data FOLDER --output FILE

Calls of texts in the file's order are timed in three ways: as one batch, as a caller sends it that does not sort;
divided by the runtime into sorted batches of 256 tokens, one on each thread; and divided so only if they have more than
1,024 tokens together, otherwise as one batch on all threads. Batches without padding say what packing costs where there
is nothing to gain. All is timed interleaved, with the native kernels; without them, rows are not packed.

Made bench/results/packed-rows-*.json, with MiniLM-L6 and BERT-base.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import onnx_ir as ir

from bert_bench.experiments.data_sets import DATA_SETS, rows_of
from bert_bench.experiments.harness import path_option, time_full_batch, time_interleaved, write_result
from bert_bench.experiments.long_texts import LONG_TEXTS
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import paired_speedup
from bert_export.calibration_texts import built_in_calibration, spread
from bert_export.capture import capture
from bert_export.fusion import add_padding_branch, fuse
from bert_export.outline_kernels import outline_kernels
from bert_export.pack_rows import pack_rows
from bert_export.quantization import expected_projections, measure_activations, quantize
from bert_models import load_model, open_checkpoint
from bert_runtime import Model
from bert_runtime.cpu.native_kernels import kernel_names
from bert_runtime.cpu.parallel_sessions import ParallelSessions
from bert_runtime.cpu.session import Session
from bert_runtime.machine import available_cores
from bert_runtime.tasks import Task, TextInput
from bert_runtime.tokenization import Batch, TextTokenizer
from bert_runtime.tokenization.batch import pad

__all__ = ["main", "results_table"]

_PADDED, _PACKED, _WHOLE = "rows of padding", "packed rows", "packed rows, few tokens as one batch"

_WHOLE_TOKENS = 1024
"""Tokens of a call that is one batch."""

_SHAPES = ((1, 16), (1, 128), (8, 128), (32, 64))
"""Sequences and tokens of the batches without padding."""

_CALL_TEXTS, _CALLS = (8, 32, 128), 4
"""Texts of a call, and calls of each size and data set, spread over its file."""

_CALLS_TIMES_TOKENS = 2400
"""Calls per round times tokens per batch, so that a round takes about as long at every shape."""


def _graphs(checkpoint: Path) -> tuple[dict[str, ir.Model], Task, TextTokenizer]:
    """Return the INT8 graph with rows of padding and with packed rows, calibrated on the built-in texts."""
    source = open_checkpoint(checkpoint)
    model = load_model(source, source.task())
    task = model.runtime_task()
    tokenizer = source.text_tokenizer(None, task.windows)
    graph = capture(model)
    counts = fuse(graph, source.config, model.task)
    texts = built_in_calibration(task, tokenizer)
    activations = measure_activations(graph, texts.batches(task, tokenizer), texts.headroom)
    quantize(graph, expected_projections(source.config, counts), activations)
    padded, _ = outline_kernels(add_padding_branch(graph, counts)[0])
    return {_PADDED: padded, _PACKED: pack_rows(padded)[0]}, task, tokenizer


def _texts(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each data set, and its texts in the file's order."""
    for name, title in (("sst2", "SST-2"), ("banking77", "BANKING77")):
        yield title, [row["text"] for row in rows_of(DATA_SETS[name], data, dev=True)]
    yield "passages of articles", [row["text"] for row in LONG_TEXTS["articles"].read(data)[1]]


def _open(path: Path, task: Task, tokenizer: TextTokenizer, whole_tokens: int) -> Model:
    """Open a graph that runs a batch on each thread, or so few tokens on all of them."""
    threads, open_session = available_cores(), partial(Session, path, task.output, int8=True)
    session = open_session(threads)
    parallel = ParallelSessions(session, partial(open_session, 1), threads)
    return Model(task, tokenizer, session, parallel, max_batch_tokens=256, whole_batch_tokens=whole_tokens)


def _measure(models: Mapping[str, Model], data: Path, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the measurement of each case: milliseconds of a call, and speed-ups over rows of padding."""
    sessions = {name: models[name].session.run for name in (_PADDED, _PACKED)}
    for sequences, tokens in _SHAPES:
        calls = max(1, round(_CALLS_TIMES_TOKENS / (sequences * tokens)))
        yield f"{sequences} × {tokens} tokens", time_full_batch(sessions, sequences, tokens, rounds, calls)
    tokenizer = models[_PACKED].tokenizer
    for title, texts in _texts(data):
        for size in _CALL_TEXTS:
            starts = spread(range(0, len(texts) - size + 1, size), _CALLS)
            calls_of_texts = [texts[start : start + size] for start in starts]
            batches = [_batch(tokenizer, call) for call in calls_of_texts]
            masks = [batch.attention_mask for batch in batches]
            padding = {
                "padding": round(1 - sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks), 4)
            }
            name = f"{size} texts of {title}"
            yield f"{name}, one batch", padding | _timed(sessions, batches, rounds)
            yield f"{name}, divided", _timed(models, calls_of_texts, rounds)


def _batch(tokenizer: TextTokenizer, texts: Sequence[str]) -> Batch:
    encodings = tokenizer.encode_ids(list(map(TextInput, texts)))
    return pad([window for windows in encodings for window in windows], tokenizer.pad_token_id)


def _timed(runs: Mapping[str, Callable[[Any], object]], calls: Sequence[object], rounds: int) -> dict[str, Any]:
    timings = time_interleaved({name: partial(_run_all, run, calls) for name, run in runs.items()}, rounds, 1)
    return {
        name: {
            "p50_ms": round(timing.p50_ms / len(calls), 4),
            "speedup": round(paired_speedup(timing, timings[_PADDED]).median, 3),
        }
        for name, timing in timings.items()
    }


def _run_all(run: Callable[[Any], object], calls: Sequence[object]) -> None:
    for call in calls:
        run(call)


def results_table(result: Path) -> str:
    """Return the speed-ups in a result file as a Markdown table, one row per case."""
    rows = []
    for name, case in json.loads(result.read_text("utf-8"))["cases"].items():
        padding = f"{100 * case['padding']:.0f} %" if "padding" in case else "–"
        speedups = [f"{case[engine]['speedup']:.2f}×" if engine in case else "–" for engine in (_PACKED, _WHOLE)]
        rows.append([name, padding, f"{case[_PADDED]['p50_ms']:.2f}", *speedups])
    return markdown_table(["call", "padding", f"{_PADDED}: ms", _PACKED, _WHOLE], rows)


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder of a classifier.")
@click.option("--title", required=True, help="Name of the model.")
@path_option("--data", "Folder of the data sets.")
@path_option("--output", "Result file to write.")
@click.option("--rounds", type=int, default=15, show_default=True, help="Rounds of timing.")
def main(checkpoint: Path, title: str, data: Path, output: Path, rounds: int) -> None:
    """Time both graphs on every call and write the result."""
    if not kernel_names():
        raise click.ClickException("expected a processor with native kernels, which alone pack rows")
    graphs, task, tokenizer = _graphs(checkpoint)
    models = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, graph in graphs.items():
            ir.save(graph, path := Path(scratch) / f"{name}.onnx")
            models[name] = _open(path, task, tokenizer, 0)
        models[_WHOLE] = _open(path, task, tokenizer, _WHOLE_TOKENS)
        cases = dict(_measure(models, data, rounds))
    write_result(output, {"title": title, "calls": _CALLS, "rounds": rounds, "cases": cases})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
