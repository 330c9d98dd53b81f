"""Time a bundle's graphs for CUDA with other options of ONNX Runtime's provider: attention kernels and memory growth.

python -m bert_bench.experiments.cuda_options --bundle BUNDLE --output FILE

Sessions differ in one option from the runtime's and are timed interleaved, on full batches, captured and not. An option
with which a session fails is listed with the error. The result is written after every shape.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_runtime import Manifest
from bert_runtime.devices import Device
from bert_runtime.gpu import cuda_provider
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import ShapeBuckets
from bert_runtime.tokenization import Batch

__all__ = ["main", "open_with"]

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "as the runtime": {},
    "cuDNN's attention, too": {"sdpa_kernel": "27"},
    "arena grows by what is needed": {"arena_extend_strategy": "kSameAsRequested"},
}

_SHAPES = ((1, 16), (1, 128), (8, 128), (128, 128))
_ROUNDS, _CALLS = 5, 20


def open_with(options: Mapping[str, str], path: Path, manifest: Manifest, shapes: ShapeBuckets) -> CudaSession:
    """Open a session whose provider has further options."""
    runtimes_options = cuda_provider.provider_options

    def provider_options(device: Device, *, capture: bool) -> dict[str, str]:
        return {**runtimes_options(device, capture=capture), **options}

    with patch.object(cuda_provider, "provider_options", provider_options):
        return CudaSession(path, manifest, Device(kind="cuda"), shapes)


@click.command(help=__doc__)
@path_option("--bundle", "Bundle with FP16 graphs for CUDA.")
@path_option("--output", "Result file to write, in JSON.")
def main(bundle: Path, output: Path) -> None:
    """Time, print, and write the result."""
    manifest = Manifest.read(bundle)
    path = bundle / manifest.variant("fp16", "cuda").model.file
    result: dict[str, Any] = {"bundle": bundle.name, "timings": {}, "failed": {}}
    for captured, shapes in ((True, ShapeBuckets()), (False, ShapeBuckets(batch_sizes=()))):
        sessions = {name: open_with(options, path, manifest, shapes) for name, options in _OPTIONS.items()}
        for rows, tokens in _SHAPES:
            case = f"{rows}x{tokens}, {'captured' if captured else 'not captured'}"
            ones = np.ones((rows, min(tokens, manifest.max_tokens)), dtype=np.int64)
            functions: dict[str, Callable[[], object]] = {}
            for name, session in sessions.items():
                run = partial(session.run, Batch(ones * 5, ones, ones * 0))
                try:
                    for _ in range(3):  # the second captures
                        run()
                    functions[name] = run
                except Exception as error:  # the report lists errors of any type
                    result["failed"][f"{case}: {name}"] = f"{type(error).__name__}: {str(error)[:300]}"
            timings = time_interleaved(functions, _ROUNDS, _CALLS)
            result["timings"][case] = {name: asdict(timing) for name, timing in timings.items()}
            click.echo(f"{case}: { {name: round(timing.p50_ms, 4) for name, timing in timings.items()} }")
            write_result(output, result)


if __name__ == "__main__":
    main()
