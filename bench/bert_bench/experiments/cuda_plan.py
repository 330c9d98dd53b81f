"""Measure what a new GPU should tell first, in four steps of less than 8 minutes each that need no network.

python -m bert_bench.experiments.cuda_plan --checkpoint CKPT --bundle BUNDLE --output FOLDER [--step NAME]

* `kernels`: driver and versions, `pytest -m gpu` (in a checkout), and the attention kernel for every form and length.
* `sessions`: BUNDLE's outputs beside the CPU's in FP32, first calls, latency, and memory after threads.
* `bert-base`: BERT-base from its configuration and a seed, exported here: the bundle's engines alone.
* `pytorch`: BERT-base's bundle against PyTorch, eager and compiled, and with other options of the CUDA provider.

CKPT is a checkpoint with a BERT vocabulary, such as all-MiniLM-L6-v2, and BUNDLE was exported from it for CUDA; without
it, it is exported first. Each measurement writes a file of its own in FOLDER as it goes on, and its output beside it.
One that fails or runs out of its step's time is listed, and the next one starts; the command then exits with 1.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bert_bench.experiments.harness import path_option

__all__ = ["STEPS", "Measurement", "main", "run_step"]

STEP_LIMIT_S = 460
"""Time of one step, in seconds."""

_GOAL_CASES = ("1x16", "1x128", "8x128", "128x128", "mixed", "mixed, unsorted")
_BUNDLE_ENGINES = ("bundle", "bundle, no CUDA graphs", "bundle, packed", "bundle, unmasked")
_PYTORCH_ENGINES = ("PyTorch eager", "torch.compile", "bundle", "bundle, no CUDA graphs", "bundle, packed")

_MAKE_BERT_BASE = """
import sys
from pathlib import Path
import torch
from bert_models import TaskModel
from bert_models.families.bert import BERT
from bert_models.saving import save_model
from bert_runtime.tasks import TextClassification
folder = Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
model = TaskModel(BERT.preset(sys.argv[3]), TextClassification(labels=("no", "yes"))).eval()
save_model(model, folder, tokenizer_from=Path(sys.argv[1]), max_tokens=512)
"""

_EXPORT = """
import sys
import onnxruntime
onnxruntime.get_available_providers = lambda: ["CPUExecutionProvider"]
from bert_export import export
export(sys.argv[1], sys.argv[2], targets=("cuda",), progress=print)
"""
"""Verifies the bundle on the CPU: what differs on the GPU is for the sessions' experiment to measure."""

_TELL_VERSIONS = """
import onnxruntime, torch
from bert_runtime.devices import cuda_unavailable_reason
from bert_runtime.machine import installed_versions
print(torch.cuda.is_available() and torch.cuda.get_device_properties(0), cuda_unavailable_reason())
print(torch.__version__, onnxruntime.__version__, onnxruntime.get_available_providers())
print(installed_versions(("nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cuda-runtime", "onnx", "onnx-ir")))
"""


@dataclass(frozen=True)
class Measurement:
    """A command of a step."""

    name: str
    """Part of the names of its files."""
    command: Sequence[str]


@dataclass(frozen=True)
class _Paths:
    checkpoint: Path
    bundle: Path
    output: Path
    size: str

    @property
    def base(self) -> Path:
        return self.output / "bert-base"

    @property
    def base_bundle(self) -> Path:
        return self.output / "bert-base-bundle"

    def experiment(self, name: str, module: str, *arguments: str) -> Measurement:
        """Return the measurement that is an experiment with a result file."""
        result = str(self.output / f"{name}.json")
        return Measurement(name, _python(f"-m bert_bench.experiments.{module}", *arguments, "--output", result))


def _python(options: str, *arguments: str) -> list[str]:
    """Return a command of this interpreter."""
    return [sys.executable, *options.split(), *arguments]


def _export(name: str, checkpoint: Path, bundle: Path) -> list[Measurement]:
    """Return the export of a checkpoint for CUDA, none if the bundle is there."""
    if (bundle / "bundle.json").is_file():
        return []
    return [Measurement(name, [sys.executable, "-c", _EXPORT, str(checkpoint), str(bundle)])]


def _kernels(paths: _Paths) -> list[Measurement]:
    tests = Path("tests/runtime/gpu/test_on_gpu.py")
    return [
        Measurement("driver", ["nvidia-smi"]),
        Measurement("versions", [sys.executable, "-c", _TELL_VERSIONS]),
        *_export("export", paths.checkpoint, paths.bundle),
        paths.experiment("attention-kernels", "cuda_attention_kernels", "--bundle", str(paths.bundle)),
        *([Measurement("gpu-tests", _python("-m pytest -q -m gpu", str(tests)))] if tests.is_file() else []),
    ]


def _sessions(paths: _Paths) -> list[Measurement]:
    return [
        *_export("export", paths.checkpoint, paths.bundle),
        paths.experiment("sessions", "cuda_sessions", "--bundle", str(paths.bundle)),
    ]


def _make_base(paths: _Paths) -> list[Measurement]:
    if (paths.base_bundle / "bundle.json").is_file():
        return []
    make = [sys.executable, "-c", _MAKE_BERT_BASE, str(paths.checkpoint), str(paths.base), paths.size]
    return [Measurement("make-bert-base", make), *_export("export-bert-base", paths.base, paths.base_bundle)]


def _timing(paths: _Paths, name: str, engines: Sequence[str]) -> Measurement:
    chosen = [option for case in _GOAL_CASES for option in ("--case", case)]
    chosen += [option for engine in engines for option in ("--engine", engine)]
    arguments = ("--checkpoint", str(paths.base), "--bundle", str(paths.base_bundle))
    return paths.experiment(name, "cuda", *arguments, *chosen)


def _bert_base(paths: _Paths) -> list[Measurement]:
    return [
        *_make_base(paths),
        paths.experiment("bert-base-sessions", "cuda_sessions", "--bundle", str(paths.base_bundle)),
        paths.experiment("bert-base-kernels", "cuda_attention_kernels", "--bundle", str(paths.base_bundle)),
        _timing(paths, "bert-base", _BUNDLE_ENGINES),
    ]


def _pytorch(paths: _Paths) -> list[Measurement]:
    return [
        *_make_base(paths),
        _timing(paths, "bert-base-and-pytorch", _PYTORCH_ENGINES),
        paths.experiment("options", "cuda_options", "--bundle", str(paths.base_bundle)),
    ]


STEPS: dict[str, Callable[[_Paths], list[Measurement]]] = {
    "kernels": _kernels,
    "sessions": _sessions,
    "bert-base": _bert_base,
    "pytorch": _pytorch,
}


def run_step(measurements: Sequence[Measurement], output: Path, limit_s: float = STEP_LIMIT_S) -> list[str]:
    """Run measurements one after the other.

    Args:
        measurements: what to run.
        output: the folder for what they print, `NAME.log`.
        limit_s: the time for all of them, in seconds; one that runs longer is ended.

    Returns:
        What went wrong, a line each.
    """
    end = time.monotonic() + limit_s
    failed = []
    environment = {"CUDA_MODULE_LOADING": "LAZY", **os.environ}
    for measurement in measurements:
        start = time.monotonic()
        click.echo(f"{measurement.name} …")
        with (output / f"{measurement.name}.log").open("w", encoding="utf-8") as log:
            try:
                code = subprocess.run(
                    measurement.command, stdout=log, stderr=subprocess.STDOUT, env=environment,
                    timeout=max(end - start, 1), check=False,
                ).returncode  # fmt: skip
                reason = f"exit code {code}" if code else None
            except subprocess.TimeoutExpired:
                reason = "the step's time was over"
            except OSError as error:
                reason = str(error)
        click.echo(f"{measurement.name}: {reason or 'done'}, {time.monotonic() - start:.0f} s")
        if reason is not None:
            failed.append(f"{measurement.name}: {reason}, see {measurement.name}.log")
    return failed


@click.command(help=__doc__)
@path_option("--checkpoint", "Checkpoint folder with a BERT vocabulary.")
@path_option("--bundle", "Bundle of the checkpoint for CUDA in FP16; without it, one is exported.", required=False)
@path_option("--output", "Folder for the results.")
@click.option("--step", "steps", multiple=True, type=click.Choice(tuple(STEPS)), help="Step to run; all by default.")
@click.option("--size", default="base", show_default=True, help="Size of BERT in the last two steps.")
def main(checkpoint: Path, bundle: Path | None, output: Path, steps: tuple[str, ...], size: str) -> None:
    """Run the steps, and exit with 1 where a measurement failed."""
    output.mkdir(parents=True, exist_ok=True)
    paths = _Paths(checkpoint, bundle or output / "bundle", output, size)
    failed = [line for name in steps or STEPS for line in run_step(STEPS[name](paths), output)]
    for line in failed:
        click.echo(line, err=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
