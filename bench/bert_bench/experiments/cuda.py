"""Measure a checkpoint's speed on a GPU: the exported bundle vs. PyTorch in FP16, eager and compiled, and optimum O4.

python -m bert_bench.experiments.cuda --checkpoint CKPT [--labelled FILE] [--output FILE]

Exports the checkpoint for CUDA in every padding mode and for TensorRT, checks every engine's outputs against PyTorch in
FP32, and times three kinds of workloads:

* Full batches: the benchmark's grid of shapes and 128x128, from token ids in host memory to outputs in host memory, so
  that copies and synchronization are included.
* Mixed lengths, as token ids: 512 texts sorted by length into batches of 16,384 tokens, or in order in batches of 128,
  where packing saves most.
* Texts, with tokenization and decoding: one short text, 512 texts, and four threads that call with single texts.

Engines are timed interleaved: 5 rounds of 20 calls, each round starting with another engine, after warm-up. The report
has the median latency, sequences per second and the speed-up over PyTorch eager. Engines that cannot be opened are
listed with the reason; optimum O4 and TensorRT need their packages. With `--labelled`, outputs on real texts are
compared with PyTorch in FP32. The report ends with the goals for an H200.

No result in bench/results yet. Without a GPU, the command exits with 1.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bert_bench.experiments.cuda_checks import check_outputs, fidelity, goals
from bert_bench.experiments.cuda_engines import EAGER, Engine, RunBatch, open_engines
from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_bench.settings import GRID, Settings
from bert_bench.timing_statistics import Timing, paired_speedup
from bert_bench.workloads import build_workload, mixed_lengths
from bert_export import export
from bert_export.cli.terminal import format_table
from bert_models import load_model, open_checkpoint
from bert_runtime.batching import length_sorted_batches
from bert_runtime.devices import Device, cuda_unavailable_reason
from bert_runtime.loading import bundle_tokenizer, load
from bert_runtime.model import Model
from bert_runtime.records import read_records
from bert_runtime.runner import FunctionRunner
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["Workload", "forward_workloads", "main", "make_batches", "text_workloads"]

_SHAPES = (*GRID, (128, 128))
"""Sequences and tokens of the full batches."""

_MIXED_TEXTS = 512
_BATCH_TOKENS = 16384
"""Most tokens in a batch of texts that are sorted by length."""
_UNSORTED_BATCH_SIZE = 128

_CALLERS, _CALLS_PER_CALLER = 4, 16
_WARM_UP_CALLS = 5


@dataclass(frozen=True)
class Workload:
    """A number of sequences, and per engine the function that processes them."""

    sequences: int
    functions: Mapping[str, Callable[[], object]]


def make_batches(task: Task, vocab_size: int, max_tokens: int, seed: int = 0) -> dict[str, list[Batch]]:
    """Make the batches of random token ids to time.

    Args:
        task: The ids are valid for it.
        vocab_size: Ids are below it.
        max_tokens: Longest sequence of the model. Shapes with more tokens are left out.
        seed: Seed of ids and lengths.

    Returns:
        By workload: one full batch of each shape, and texts of mixed lengths in several batches.

    """
    generator = np.random.default_rng(seed)

    def batch(lengths: list[int]) -> Batch:
        shape = (len(lengths), max(lengths))
        mask = (np.arange(shape[1])[None, :] < np.array(lengths)[:, None]).astype(np.int64)
        return Batch(task.valid_probe_ids(generator.integers(0, vocab_size, shape)), mask, np.zeros(shape, np.int64))

    batches = {
        f"{sequences}x{tokens}": [batch([tokens] * sequences)] for sequences, tokens in _SHAPES if tokens <= max_tokens
    }
    lengths = mixed_lengths(_MIXED_TEXTS, seed, max_tokens)
    sorted_indices = length_sorted_batches(lengths, _BATCH_TOKENS)
    batches["mixed"] = [batch([lengths[i] for i in indices]) for indices in sorted_indices]
    starts = range(0, len(lengths), _UNSORTED_BATCH_SIZE)
    batches["mixed, unsorted"] = [batch(lengths[i : i + _UNSORTED_BATCH_SIZE]) for i in starts]
    return batches


def forward_workloads(engines: Mapping[str, Engine], batches: Mapping[str, Sequence[Batch]]) -> dict[str, Workload]:
    """Return the workloads from token ids to outputs; each has the engines that accept all of its batches."""

    def run_all(run: RunBatch, batches: Sequence[Batch]) -> None:
        for batch in batches:
            run(batch)

    return {
        name: Workload(
            sum(len(batch.input_ids) for batch in workload_batches),
            {
                engine_name: partial(run_all, engine.run, workload_batches)
                for engine_name, engine in engines.items()
                if all(map(engine.accepts, workload_batches))
            },
        )
        for name, workload_batches in batches.items()
    }


def text_workloads(engines: Mapping[str, Engine], task: Task, tokenizer: TextTokenizer) -> dict[str, Workload]:
    """Return the workloads from texts to results: one text, many texts, and several threads.

    All engines use the runtime's tokenization and decoding. Engines that do not accept any padding are left out.
    """
    settings = Settings(shapes=((1, 16),), text_tokens=(14,), num_texts=_MIXED_TEXTS)
    workload = build_workload(task, tokenizer, {}, settings)
    (text,), texts = workload.singles[0].texts, list(workload.offline[0].texts)
    models = {
        name: Model(task, tokenizer, FunctionRunner(engine.run), max_batch_tokens=_BATCH_TOKENS)
        for name, engine in engines.items()
        if engine.accepts_any_padding
    }

    def call_with_single_texts(model: Model) -> None:
        for single_text in texts[:_CALLS_PER_CALLER]:
            model(single_text)

    def call_from_threads(model: Model) -> None:
        with ThreadPoolExecutor(_CALLERS) as pool:
            list(pool.map(call_with_single_texts, [model] * _CALLERS))

    threaded = {name: partial(call_from_threads, model) for name, model in models.items() if engines[name].thread_safe}
    return {
        "one text": Workload(1, {name: partial(model, text) for name, model in models.items()}),
        f"{len(texts)} texts": Workload(len(texts), {name: partial(model, texts) for name, model in models.items()}),
        f"{_CALLERS} callers": Workload(_CALLERS * _CALLS_PER_CALLER, threaded),
    }


def _time(workload: Workload, rounds: int, calls: int) -> dict[str, Timing]:
    for function in workload.functions.values():  # compilation, graph capture, and cuBLAS' choice of kernels
        for _ in range(_WARM_UP_CALLS):
            function()
    return time_interleaved(workload.functions, rounds, calls)


def _report(timings: Mapping[str, Mapping[str, Timing]], workloads: Mapping[str, Workload]) -> str:
    """Format a line per workload and engine: median latency, sequences per second, and speed-up over eager."""
    rows: list[tuple[Any, ...]] = [("workload", "engine", "median ms", "sequences/s", "× eager")]
    for workload, engines in timings.items():
        for name, timing in engines.items():
            speedup = paired_speedup(timing, engines[EAGER])
            rate = workloads[workload].sequences / timing.p50_ms * 1e3
            rows.append((workload, name, f"{timing.p50_ms:.3f}", f"{rate:.0f}", f"{speedup.median:.2f}"))
    return format_table(rows)


def _check_gpu() -> None:
    """Raise `ClickException` if PyTorch or ONNX Runtime cannot use a GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException(f"needs a GPU: torch {torch.__version__} finds none")
    if reason := cuda_unavailable_reason():
        raise click.ClickException(f"needs ONNX Runtime with CUDA: {reason}")


@click.command(help=__doc__)
@click.option("--checkpoint", required=True, help="Checkpoint folder; with a hub id, optimum is left out.")
@click.option("--device", "index", type=int, default=0, show_default=True, help="Index of the GPU.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Rounds of timing.")
@click.option("--calls", type=int, default=20, show_default=True, help="Timed calls per engine and round.")
@path_option("--labelled", "File of texts to compare outputs with PyTorch in FP32 on.", required=False)
@path_option("--output", "Result file to write, in JSON.", required=False)
def main(checkpoint: str, index: int, rounds: int, calls: int, labelled: Path | None, output: Path | None) -> None:
    """Export, check, time, print, and write the result."""
    _check_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = Device(kind="cuda", index=index)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        manifest = export(
            checkpoint, bundle,
            targets=("cuda", "tensorrt"), progress=partial(click.echo, err=True),
        )  # fmt: skip
        source = open_checkpoint(checkpoint)
        reference = load_model(source, source.task())
        batches = make_batches(manifest.task, source.config.vocab_size, manifest.max_tokens)
        engines, missing = open_engines(checkpoint, bundle, Path(scratch), device, batches["1x16"][0])
        errors = check_outputs(engines, reference, [batches["1x16"][0], batches["mixed"][-1]])
        tokenizer = bundle_tokenizer(bundle, manifest)
        workloads = forward_workloads(engines, batches) | text_workloads(engines, manifest.task, tokenizer)
        measured = {}
        if labelled is not None:
            texts = [text_input for record in read_records(labelled) for text_input in manifest.task.inputs(record)]
            measured = fidelity(load(bundle, device=str(device)), reference, texts)
        timings = {name: _time(workload, rounds, calls) for name, workload in workloads.items()}
    gpu, goal_rows = torch.cuda.get_device_name(index), goals(timings, measured)
    click.echo(f"{gpu}, {checkpoint}, FP16")
    click.echo(_report(timings, workloads))
    click.echo(format_table([("goal for BERT-base on an H200", "", "here"), *goal_rows]))
    for name, reason in missing.items():
        click.echo(f"{name} is missing: {reason}")
    if output is not None:
        result = {
            "gpu": gpu,
            "checkpoint": checkpoint,
            "differences_from_fp32": errors,
            "missing": missing,
            "fidelity": measured,
            "goals": goal_rows,
            "timings": {
                workload: {name: asdict(timing) for name, timing in engines_timings.items()}
                for workload, engines_timings in timings.items()
            },
        }
        write_result(output, result)


if __name__ == "__main__":
    main()
