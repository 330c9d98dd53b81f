"""A checkpoint on a GPU: PyTorch in FP16, eager and compiled, beside the exported bundle. One command, one short table.

python -m bert_bench.experiments.cuda --checkpoint CKPT [--output FILE]

Exports the checkpoint for CUDA, checks every engine's outputs against PyTorch in FP32, and times forward passes: token
ids in host memory in, outputs in host memory out, so that copies and synchronisation are inside the clock. Engines take
turns, and another one begins in each round. All of them get the same ids and masks; `mixed` is texts of mixed lengths,
sorted into batches of one token budget, or 128 to a batch as they come, where packing has most to leave out. It has not
been run on a GPU yet; without one it says so and exits with 1.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bert_bench.experiments.common import interleaved, write_result
from bert_bench.timing import Timing, paired_speedup
from bert_bench.workloads import mixed_lengths
from bert_export.cli.common import table
from bert_export.cuda.build import HALF_TOLERANCE
from bert_export.export import export
from bert_export.parity import reference_outputs
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime import Manifest
from bert_runtime.batching import length_sorted_batches
from bert_runtime.buckets import GraphShapes
from bert_runtime.cuda import CudaSession
from bert_runtime.devices import Device, cuda_problem
from bert_runtime.tasks import FloatArray, Task
from bert_runtime.tokenization import Batch

__all__ = ["batches_of", "check_outputs", "main", "torch_engine"]

Run = Callable[[Batch], FloatArray]

_SHAPES = ((1, 16), (1, 128), (8, 128), (32, 128), (128, 128), (8, 384))
_MIXED_TEXTS, _BATCH_TOKENS, _UNSORTED = 512, 16384, 128
_BASELINE = "PyTorch eager"


def torch_engine(model: TaskModel, device: str, *, compiled: bool = False) -> Run:
    """The PyTorch model in FP16 on that device; compiled, each shape becomes a CUDA graph of its own."""
    half = model.to(device, torch.float16).eval()
    forward = torch.compile(half, mode="reduce-overhead", dynamic=False) if compiled else half

    def run(batch: Batch) -> FloatArray:
        with torch.inference_mode():
            arrays = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in batch]
            outputs: FloatArray = forward(*arrays).float().cpu().numpy()  # which waits for the GPU
        chosen: FloatArray = model.task.graph_output(outputs, batch.input_ids)
        return chosen

    return run


def batches_of(task: Task, vocab_size: int, max_tokens: int, seed: int = 0) -> dict[str, list[Batch]]:
    """The workloads: one full batch of each shape that the model can read, and texts of mixed lengths in several."""
    generator = np.random.default_rng(seed)

    def batch(lengths: list[int]) -> Batch:
        shape = (len(lengths), max(lengths))
        mask = (np.arange(shape[1])[None, :] < np.array(lengths)[:, None]).astype(np.int64)
        return Batch(task.answerable(generator.integers(0, vocab_size, shape)), mask, np.zeros(shape, np.int64))

    found = {f"{rows}x{tokens}": [batch([tokens] * rows)] for rows, tokens in _SHAPES if tokens <= max_tokens}
    lengths = mixed_lengths(_MIXED_TEXTS, seed, max_tokens)
    found["mixed"] = [batch([lengths[i] for i in indices]) for indices in length_sorted_batches(lengths, _BATCH_TOKENS)]
    found["mixed, unsorted"] = [batch(lengths[i : i + _UNSORTED]) for i in range(0, len(lengths), _UNSORTED)]
    return found


def check_outputs(engines: Mapping[str, Run], model: TaskModel, batches: list[Batch]) -> dict[str, float]:
    """Each engine's largest difference from PyTorch in FP32, as a share of the largest output.

    Raises `ClickException` where it exceeds what FP16 explains.
    """
    expected = [reference_outputs(model, batch) for batch in batches]
    scale = max(0.1, *(float(np.abs(each).max(initial=0)) for each in expected))
    errors = {
        name: max(float(np.abs(run(b) - e).max(initial=0)) / scale for b, e in zip(batches, expected, strict=True))
        for name, run in engines.items()
    }
    if wrong := [f"{name} ({error:.2g})" for name, error in errors.items() if not error <= HALF_TOLERANCE]:
        raise click.ClickException(f"not the outputs of PyTorch in FP32, to {HALF_TOLERANCE}: {', '.join(wrong)}")
    return errors


def _engines(checkpoint: str, bundle: Path, device: Device) -> dict[str, Run]:
    source = open_checkpoint(checkpoint)
    manifest = Manifest.read(bundle)
    padded = manifest.variant("fp16", "cuda")
    packed = manifest.packed(padded)
    assert packed is not None
    ours, unpadded = (
        partial(CudaSession, bundle / each.model.file, manifest, device, manifest.pad_token_id)
        for each in (padded, packed)
    )
    return {
        _BASELINE: torch_engine(load_model(source, source.task()), str(device)),
        "torch.compile": torch_engine(load_model(source, source.task()), str(device), compiled=True),
        "bundle": ours(GraphShapes(rows=())).run,
        "bundle, CUDA graphs": ours().run,
        "bundle, packed": unpadded(GraphShapes(rows=())).run,
    }


def _time(engines: Mapping[str, Run], batches: list[Batch], rounds: int, calls: int) -> dict[str, Timing]:
    def all_of(run: Run) -> None:
        for batch in batches:
            run(batch)

    runs = {name: partial(all_of, run) for name, run in engines.items()}
    for run in runs.values():  # compilation, capture, and cuBLAS' choice of kernels
        for _ in range(5):
            run()
    return interleaved(runs, rounds, calls)


def _report(timings: Mapping[str, Mapping[str, Timing]], batches: Mapping[str, list[Batch]]) -> str:
    """A line per workload: each engine's median milliseconds, sequences per second and speed-up over the baseline."""
    rows: list[tuple[Any, ...]] = [("workload", "engine", "median ms", "sequences/s", "× eager")]
    for case, engines in timings.items():
        sequences = sum(len(batch.input_ids) for batch in batches[case])
        for name, timing in engines.items():
            speedup = paired_speedup(timing, engines[_BASELINE])
            rows.append(
                (case, name, f"{timing.p50_ms:.3f}", f"{sequences / timing.p50_ms * 1e3:.0f}", f"{speedup.median:.2f}")
            )
    return table(rows)


@click.command(help=__doc__)
@click.option("--checkpoint", required=True, help="A checkpoint folder or hub id.")
@click.option("--device", "index", type=int, default=0, show_default=True, help="Which GPU.")
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--calls", type=int, default=20, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the result as JSON, too.")
def main(checkpoint: str, index: int, rounds: int, calls: int, output: Path | None) -> None:
    """Exports, checks, times, prints."""
    if not torch.cuda.is_available():
        raise click.ClickException(f"needs a GPU: torch {torch.__version__} finds none")
    if problem := cuda_problem():
        raise click.ClickException(f"needs ONNX Runtime with CUDA: {problem}")
    torch.backends.cuda.matmul.allow_tf32 = False
    device = Device(kind="cuda", index=index)
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        manifest = export(checkpoint, bundle, targets=("cuda",), packed=True, progress=partial(click.echo, err=True))
        source = open_checkpoint(checkpoint)
        reference = load_model(source, source.task())
        batches = batches_of(manifest.task, source.config.vocab_size, manifest.max_tokens)
        engines = _engines(checkpoint, bundle, device)
        errors = check_outputs(engines, reference, [batches["1x16"][0], batches["mixed"][-1]])
        timings = {case: _time(engines, each, rounds, calls) for case, each in batches.items()}
    click.echo(f"{torch.cuda.get_device_name(index)}, {checkpoint}, FP16")
    click.echo(_report(timings, batches))
    if output is not None:
        result = {
            "gpu": torch.cuda.get_device_name(index),
            "checkpoint": checkpoint,
            "differences_from_fp32": errors,
            "timings": {case: {n: asdict(t) for n, t in each.items()} for case, each in timings.items()},
        }
        write_result(output, result)


if __name__ == "__main__":
    main()
