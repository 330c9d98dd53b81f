"""Measure a checkpoint's speed on a GPU: the exported bundle vs. PyTorch in FP16, eager and compiled, and optimum O4.

python -m bert_bench.experiments.cuda --checkpoint CKPT [--bundle BUNDLE] [--case NAME] [--engine NAME] [--output FILE]

Exports the checkpoint for CUDA in every padding mode unless a bundle is given, checks every engine's outputs against
PyTorch in FP32, and times three kinds of cases:

* Full batches: the benchmark's grid of shapes and 128x128, from token ids in host memory to outputs in host memory, so
  that copies and synchronization are included.
* Mixed lengths, as token ids: 512 texts sorted by length into batches of 16,384 tokens, or in order in batches of 128,
  where packing saves most.
* Texts, with tokenization and decoding: one short text, 512 texts, and four threads that call with single texts.

Engines are timed interleaved: 5 rounds of 20 calls, each round starting with another engine, after warm-up. The report
has the median latency, sequences per second and the speed-up over PyTorch eager. Engines that cannot be opened, or that
fail or fall back in a case, are listed with the reason. The result is written after every case, so that what was
measured survives the end of a machine's time. optimum O4 and TensorRT need their packages; TensorRT runs only if it is
named. With `--labelled`, outputs on real texts are compared with PyTorch in FP32. The report ends with the goals for an
H200.

Runs from a checkout, without an installed distribution. No result in bench/results yet. Without a GPU, the command
exits with 1.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from bert_bench.experiments.cuda_checks import check_outputs, fidelity, goals
from bert_bench.experiments.cuda_engines import DEFAULT_ENGINES, EAGER, ENGINES, TENSORRT, Engine, open_engines
from bert_bench.experiments.cuda_workloads import Workload, forward_workloads, make_batches, text_workloads
from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_bench.timing_statistics import Timing, paired_speedup
from bert_export import export
from bert_export.cli.terminal import format_table
from bert_models import load_model, open_checkpoint
from bert_runtime import Manifest
from bert_runtime.devices import Device, cuda_unavailable_reason
from bert_runtime.loading import bundle_tokenizer, load
from bert_runtime.records import read_records

__all__ = ["choose", "main", "time_case"]

_WARM_UP_CALLS = 5


def time_case(
    workload: Workload, engines: Mapping[str, Engine], rounds: int, calls: int
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time a case's engines against each other.

    Args:
        workload: the case.
        engines: the engines by name.
        rounds: rounds of timing.
        calls: timed calls per engine and round.

    Returns:
        The timings, and for each engine that failed or fell back as it was warmed up, the reason; it is not timed.
    """
    warm, left_out = {}, {}
    for name, function in workload.functions.items():
        before = engines[name].count_fallbacks()
        try:
            for _ in range(_WARM_UP_CALLS):  # compilation, graph capture, and cuBLAS' choice of kernels
                function()
        except Exception as error:  # engines raise errors of any type; the report lists them
            left_out[name] = f"{type(error).__name__}: {str(error)[:500]}"
            continue
        if fallbacks := engines[name].count_fallbacks() - before:
            left_out[name] = f"fell back {fallbacks} times as it was warmed up"
        else:
            warm[name] = function
    return (time_interleaved(warm, rounds, calls) if warm else {}), left_out


def choose(cases: Mapping[str, Workload], names: Sequence[str]) -> dict[str, Workload]:
    """Return the named cases, all by default.

    Raises:
        click.UsageError: there is no case of a name.
    """
    if unknown := [name for name in names if name not in cases]:
        raise click.UsageError(f"there is no case {', '.join(unknown)}; there are {', '.join(cases)}")
    return {name: cases[name] for name in names or cases}


def _report(timings: Mapping[str, Mapping[str, Timing]], workloads: Mapping[str, Workload]) -> str:
    """Format a line per case and engine: median latency, sequences per second, and speed-up over eager."""
    rows: list[tuple[Any, ...]] = [("workload", "engine", "median ms", "sequences/s", "× eager")]
    for workload, engines in timings.items():
        for name, timing in engines.items():
            speedup = f"{paired_speedup(timing, engines[EAGER]).median:.2f}" if EAGER in engines else "-"
            rate = workloads[workload].sequences / timing.p50_ms * 1e3
            rows.append((workload, name, f"{timing.p50_ms:.3f}", f"{rate:.0f}", speedup))
    return format_table(rows)


def _check_gpu() -> None:
    """Raise `ClickException` if PyTorch or ONNX Runtime cannot use a GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException(f"needs a GPU: torch {torch.__version__} finds none")
    if reason := cuda_unavailable_reason():
        raise click.ClickException(f"needs ONNX Runtime with CUDA: {reason}")


@click.command(help=__doc__)
@click.option("--checkpoint", required=True, help="Checkpoint folder; with a hub id, optimum is left out.")
@path_option("--bundle", "Bundle of the checkpoint for CUDA in FP16; without it, one is exported.", required=False)
@click.option("--case", "cases", multiple=True, help="Case to time, such as 1x128 or mixed; all by default.")
@click.option(
    "--engine", "names", multiple=True, type=click.Choice(ENGINES), help="Engine; by default all but TensorRT."
)
@click.option("--device", "index", type=int, default=0, show_default=True, help="Index of the GPU.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Rounds of timing.")
@click.option("--calls", type=int, default=20, show_default=True, help="Timed calls per engine and round.")
@path_option("--labelled", "File of texts to compare outputs with PyTorch in FP32 on.", required=False)
@path_option("--output", "Result file in JSON, written after every case.", required=False)
def main(
    checkpoint: str,
    bundle: Path | None,
    cases: tuple[str, ...],
    names: tuple[str, ...],
    index: int,
    rounds: int,
    calls: int,
    labelled: Path | None,
    output: Path | None,
) -> None:
    """Export, check, time, print, and write the result."""
    _check_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = Device(kind="cuda", index=index)
    gpu = torch.cuda.get_device_name(index)
    with tempfile.TemporaryDirectory() as scratch:
        if bundle is None:
            bundle = Path(scratch) / "bundle"
            targets = ("cuda", "tensorrt") if TENSORRT in names else ("cuda",)
            export(checkpoint, bundle, targets=targets, progress=partial(click.echo, err=True))
        manifest, source = Manifest.read(bundle), open_checkpoint(checkpoint)
        reference = load_model(source, source.task())
        batches = make_batches(manifest.task, source.config.vocab_size, manifest.max_tokens)
        engines, missing = open_engines(
            checkpoint, bundle, Path(scratch), device, batches["1x16"][0], names or DEFAULT_ENGINES
        )
        tokenizer = bundle_tokenizer(bundle, manifest)
        workloads = choose(
            forward_workloads(engines, batches) | text_workloads(engines, manifest.task, tokenizer), cases
        )
        result: dict[str, Any] = {
            "gpu": gpu,
            "checkpoint": checkpoint,
            "differences_from_fp32": check_outputs(engines, reference, [batches["1x16"][0], batches["mixed"][-1]]),
            "missing": missing,
            "fidelity": {},
            "left_out": {},
            "timings": {},
        }
        if labelled is not None:
            texts = [text_input for record in read_records(labelled) for text_input in manifest.task.inputs(record)]
            result["fidelity"] = fidelity(load(bundle, device=str(device)), reference, texts)
        timings: dict[str, dict[str, Timing]] = {}
        for name, workload in workloads.items():
            click.echo(f"timing {name}", err=True)
            timings[name], result["left_out"][name] = time_case(workload, engines, rounds, calls)
            result["timings"][name] = {engine: asdict(timing) for engine, timing in timings[name].items()}
            result["goals"] = goals(timings, result["fidelity"])
            if output is not None:
                write_result(output, result)
    click.echo(f"{gpu}, {checkpoint}, FP16")
    click.echo(_report(timings, workloads))
    click.echo(format_table([("goal for BERT-base on an H200", "", "here"), *result["goals"]]))
    for name, reason in missing.items():
        click.echo(f"{name} is missing: {reason}")
    for case, reasons in result["left_out"].items():
        for name, reason in reasons.items():
            click.echo(f"{name} is missing from {case}: {reason}")


if __name__ == "__main__":
    main()
