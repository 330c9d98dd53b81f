"""A checkpoint on a GPU: PyTorch in FP16, eager and compiled, beside the exported bundle. One command, one short table.

python -m bert_bench.experiments.cuda --checkpoint CKPT [--output FILE]

Exports the checkpoint for CUDA in every padding mode and for TensorRT, checks every engine's outputs against PyTorch in
FP32, and times them: the benchmark's grid of shapes and 128x128, from token ids in host memory to outputs in host
memory, so that copies and synchronisation are inside the clock; texts of mixed lengths as token ids, sorted into
batches of one token budget, or 128 to a batch as they come, where packing has most to leave out; and from text to
answer, one short text, many of mixed lengths, and four callers of single texts at the same time. Engines take turns,
and another one begins in each round. One that cannot be had is listed with its reason: optimum O4 and TensorRT want
their packages. With `--labelled`, outputs are held against PyTorch in FP32 on real texts. What is aimed at closes the
report. It has not been run on a GPU yet; without one it says so and exits with 1.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import onnxruntime
import torch

from bert_bench.engines.onnxruntime_plain import onnx_session
from bert_bench.engines.optimum import CONFIGS, OptimumSpec
from bert_bench.experiments.cuda_checks import EAGER, Engine, Run, check_outputs, fidelity, goals
from bert_bench.experiments.harness import time_interleaved, write_result
from bert_bench.settings import GRID, Settings
from bert_bench.timing_statistics import Timing, paired_speedup
from bert_bench.workloads import build_workload, mixed_lengths
from bert_export import export
from bert_export.cli.common import table
from bert_models import TaskModel, load_model, open_checkpoint
from bert_runtime import Manifest
from bert_runtime.batching import length_sorted_batches
from bert_runtime.bundle.manifest import PACKED, UNMASKED, Variant
from bert_runtime.cpu.session import Session
from bert_runtime.devices import CUDA_PROVIDER, Device, cuda_unavailable_reason
from bert_runtime.gpu.cuda_session import CudaSession, provider_options
from bert_runtime.gpu.shape_buckets import NO_BUCKETS, ShapeBuckets, is_full, is_right_padded
from bert_runtime.loading import bundle_tokenizer, load, open_variant
from bert_runtime.model import Model
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch, TextTokenizer

__all__ = ["Work", "batches_of", "forward_works", "main", "text_works", "torch_engine"]

_SHAPES = (*GRID, (128, 128))
_MIXED_TEXTS, _BATCH_TOKENS, _UNSORTED = 512, 16384, 128
_CALLERS, _CALLS = 4, 16


@dataclass(frozen=True)
class Work:
    """What is timed: a number of sequences, and what each engine does with them."""

    sequences: int
    runs: Mapping[str, Callable[[], object]]


def torch_engine(model: TaskModel, device: str, *, compiled: bool = False) -> Run:
    """The PyTorch model in FP16 on that device; compiled, each shape becomes a CUDA graph of its own."""
    half = model.to(device, torch.float16).eval()
    forward = torch.compile(half, mode="reduce-overhead", dynamic=False) if compiled else half

    def run(batch: Batch) -> FloatArray:
        with torch.inference_mode():
            arrays = [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in batch]
            outputs = model.task.graph_output(forward(*arrays), arrays[0])
            array: FloatArray = outputs.float().cpu().numpy()  # which waits for the GPU
        return array

    return run


def batches_of(task: Task, vocab_size: int, max_tokens: int, seed: int = 0) -> dict[str, list[Batch]]:
    """Token ids: one full batch of each shape that the model can read, and texts of mixed lengths in several."""
    generator = np.random.default_rng(seed)

    def batch(lengths: list[int]) -> Batch:
        shape = (len(lengths), max(lengths))
        mask = (np.arange(shape[1])[None, :] < np.array(lengths)[:, None]).astype(np.int64)
        return Batch(task.valid_probe_ids(generator.integers(0, vocab_size, shape)), mask, np.zeros(shape, np.int64))

    found = {f"{rows}x{tokens}": [batch([tokens] * rows)] for rows, tokens in _SHAPES if tokens <= max_tokens}
    lengths = mixed_lengths(_MIXED_TEXTS, seed, max_tokens)
    found["mixed"] = [batch([lengths[i] for i in indices]) for indices in length_sorted_batches(lengths, _BATCH_TOKENS)]
    found["mixed, unsorted"] = [batch(lengths[i : i + _UNSORTED]) for i in range(0, len(lengths), _UNSORTED)]
    return found


def forward_works(engines: Mapping[str, Engine], batches: Mapping[str, Sequence[Batch]]) -> dict[str, Work]:
    """From token ids to outputs, by case, for the engines that read all batches of it."""

    def all_of(run: Run, batches: Sequence[Batch]) -> None:
        for batch in batches:
            run(batch)

    return {
        case: Work(
            sum(len(batch.input_ids) for batch in found),
            {
                name: partial(all_of, engine.run, found)
                for name, engine in engines.items()
                if all(map(engine.reads, found))
            },
        )
        for case, found in batches.items()
    }


def text_works(engines: Mapping[str, Engine], task: Task, tokenizer: TextTokenizer) -> dict[str, Work]:
    """From text to answer, all with the runtime's tokenization and decoding: one text, many, and several callers."""
    settings = Settings(shapes=((1, 16),), text_tokens=(14,), num_texts=_MIXED_TEXTS)
    workload = build_workload(task, tokenizer, {}, settings)
    (one,), many = workload.singles[0].texts, list(workload.offline[0].texts)
    models = {
        name: Model(task, tokenizer, cast("Session", engine), max_batch_tokens=_BATCH_TOKENS)
        for name, engine in engines.items()
        if engine.reads_all
    }

    def call_often(model: Model) -> None:
        for text in many[:_CALLS]:
            model(text)

    def callers(model: Model) -> None:
        with ThreadPoolExecutor(_CALLERS) as pool:
            list(pool.map(call_often, [model] * _CALLERS))

    together = {name: partial(callers, model) for name, model in models.items() if engines[name].many_callers}
    return {
        "one text": Work(1, {name: partial(model, one) for name, model in models.items()}),
        f"{len(many)} texts": Work(len(many), {name: partial(model, many) for name, model in models.items()}),
        f"{_CALLERS} callers": Work(_CALLERS * _CALLS, together),
    }


def _engines(
    checkpoint: str, bundle: Path, scratch: Path, device: Device, first: Batch
) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines that open and run the `first` batch, and of the others the reason."""
    source, manifest = open_checkpoint(checkpoint), Manifest.read(bundle)
    masked = manifest.variant("fp16", "cuda")
    paddings = manifest.padding_variants(masked)

    def ours(variant: Variant, shapes: ShapeBuckets) -> Run:
        return CudaSession(bundle / variant.model.file, manifest, device, manifest.pad_token_id, shapes).run

    def on_tensorrt() -> Run:
        place = Device(kind="tensorrt", index=device.index)
        return open_variant(bundle, manifest, manifest.variant("fp16", "tensorrt"), place).session.run

    def optimum_o4() -> Run:
        config = next(config for config in CONFIGS if config.name == "optimum-o4")
        folder = scratch / "optimum"
        folder.mkdir()
        spec = OptimumSpec(bundle=bundle, threads=1, max_batch_tokens=None, config=config, checkpoint=Path(checkpoint))
        spec.prepare(folder, ())
        (graph,) = folder.glob("*.onnx")
        onnxruntime.preload_dlls()
        return onnx_session(graph, 1, manifest, [(CUDA_PROVIDER, provider_options(device, capture=False))])

    def pytorch(*, compiled: bool = False) -> Run:
        return torch_engine(load_model(source, source.task()), f"cuda:{device.index}", compiled=compiled)

    openers: dict[str, Callable[[], Engine]] = {
        EAGER: lambda: Engine(pytorch()),
        "torch.compile": lambda: Engine(pytorch(compiled=True), many_callers=False),  # its graphs belong to a thread
        "optimum O4": lambda: Engine(optimum_o4()),
        "bundle": lambda: Engine(open_variant(bundle, manifest, masked, device).session.run),
        "bundle, no CUDA graphs": lambda: Engine(ours(masked, ShapeBuckets(rows=()))),
        "bundle, packed": lambda: Engine(ours(paddings[PACKED], NO_BUCKETS), is_right_padded),
        "bundle, unmasked": lambda: Engine(ours(paddings[UNMASKED], NO_BUCKETS), is_full),
        "bundle, TensorRT": lambda: Engine(on_tensorrt()),
    }
    found, missing = {}, {}
    for name, open_it in openers.items():
        try:
            engine = open_it()
            engine.run(first)  # some fail only there
            found[name] = engine
        except Exception as error:  # whatever a peer raises is what is reported of it
            if name == EAGER:
                raise
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def _time(work: Work, rounds: int, calls: int) -> dict[str, Timing]:
    for run in work.runs.values():  # compilation, capture, and cuBLAS' choice of kernels
        for _ in range(5):
            run()
    return time_interleaved(work.runs, rounds, calls)


def _report(timings: Mapping[str, Mapping[str, Timing]], works: Mapping[str, Work]) -> str:
    """A line per workload: each engine's median milliseconds, sequences per second and speed-up over the baseline."""
    rows: list[tuple[Any, ...]] = [("workload", "engine", "median ms", "sequences/s", "× eager")]
    for case, engines in timings.items():
        for name, timing in engines.items():
            speedup = paired_speedup(timing, engines[EAGER])
            rate = works[case].sequences / timing.p50_ms * 1e3
            rows.append((case, name, f"{timing.p50_ms:.3f}", f"{rate:.0f}", f"{speedup.median:.2f}"))
    return table(rows)


@click.command(help=__doc__)
@click.option("--checkpoint", required=True, help="A checkpoint folder; a hub id leaves out optimum.")
@click.option("--device", "index", type=int, default=0, show_default=True, help="Which GPU.")
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--calls", type=int, default=20, show_default=True)
@click.option("--labelled", type=click.Path(path_type=Path), help="Real texts to hold the answers against PyTorch on.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the result as JSON, too.")
def main(checkpoint: str, index: int, rounds: int, calls: int, labelled: Path | None, output: Path | None) -> None:
    """Exports, checks, times, prints."""
    if not torch.cuda.is_available():
        raise click.ClickException(f"needs a GPU: torch {torch.__version__} finds none")
    if problem := cuda_unavailable_reason():
        raise click.ClickException(f"needs ONNX Runtime with CUDA: {problem}")
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
        batches = batches_of(manifest.task, source.config.vocab_size, manifest.max_tokens)
        engines, missing = _engines(checkpoint, bundle, Path(scratch), device, batches["1x16"][0])
        errors = check_outputs(engines, reference, [batches["1x16"][0], batches["mixed"][-1]])
        works = forward_works(engines, batches) | text_works(engines, manifest.task, bundle_tokenizer(bundle, manifest))
        measured = {}
        if labelled is not None:
            texts = [each for record in read_records(labelled) for each in manifest.task.inputs(record)]
            measured = fidelity(load(bundle, device=str(device)), reference, texts)
        timings = {case: _time(work, rounds, calls) for case, work in works.items()}
    click.echo(f"{torch.cuda.get_device_name(index)}, {checkpoint}, FP16")
    click.echo(_report(timings, works))
    click.echo(table([("aimed at on an H200 with BERT-base", "", "here"), *goals(timings, measured)]))
    for name, reason in missing.items():
        click.echo(f"{name} is missing: {reason}")
    if output is not None:
        result = {
            "gpu": torch.cuda.get_device_name(index),
            "checkpoint": checkpoint,
            "differences_from_fp32": errors,
            "missing": missing,
            "fidelity": measured,
            "goals": goals(timings, measured),
            "timings": {case: {n: asdict(t) for n, t in each.items()} for case, each in timings.items()},
        }
        write_result(output, result)


if __name__ == "__main__":
    main()
