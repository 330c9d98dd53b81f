"""Check and time a bundle's own CUDA sessions: outputs in every form, first calls, latency, and memory after threads.

python -m bert_bench.experiments.cuda_sessions --bundle BUNDLE --output FILE

Per form (captured, masked, unmasked, packed), outputs on 200 texts are compared with the bundle's FP32 variant on the
CPU. Then, for the captured form: the first three calls of 40 shapes, since the second captures; the latency of single
sequences of 16 and 128 tokens; the GPU's memory before and after 20 threads that call once and end. The result is
written after every measurement.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import path_option, write_result
from bert_runtime import Manifest, load
from bert_runtime.bundle.manifest import PACKED, UNMASKED
from bert_runtime.devices import Device
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import NO_BUCKETS, ShapeBuckets
from bert_runtime.loading import bundle_tokenizer
from bert_runtime.model import Model
from bert_runtime.tasks import max_abs_difference
from bert_runtime.tokenization import Batch

__all__ = ["first_calls", "main", "measurements"]

_NUM_TEXTS = 200
_NUM_SHAPES = 40
_LATENCY_CALLS = 500
_THREADS = 20


def _texts() -> list[str]:
    """Return the first texts of the benchmark's own data."""
    data = files("bert_bench") / "data"
    lines = [
        *(data / "help_center" / "questions.txt").read_text(encoding="utf-8").splitlines(),
        *(data / "help_center" / "documents.txt").read_text(encoding="utf-8").splitlines(),
        *(
            json.loads(line)["text"]
            for line in (data / "support_intents" / "train.jsonl").read_text(encoding="utf-8").splitlines()
        ),
    ]
    return list(islice(dict.fromkeys(line for line in lines if line.strip()), _NUM_TEXTS))


def _batch(num_sequences: int, tokens: int) -> Batch:
    ones = np.ones((num_sequences, tokens), dtype=np.int64)
    return Batch(ones * 5, ones, ones * 0)


def _call_ms(session: CudaSession, batch: Batch) -> float:
    start = time.perf_counter()
    session.run(batch)
    return (time.perf_counter() - start) * 1e3


def first_calls(session: CudaSession, max_tokens: int) -> list[dict[str, Any]]:
    """Call with shapes that the session has not seen: one sequence first, then more."""
    shapes = [(rows, tokens) for rows in (1, 2, 4, 8, 16) for tokens in (9, 17, 33, 65, 97, 129, 193, 257)]
    return [
        {"shape": f"{rows}x{tokens}", "calls_ms": [_call_ms(session, _batch(rows, tokens)) for _ in range(3)]}
        for rows, tokens in shapes[:_NUM_SHAPES]
        if tokens <= max_tokens
    ]


def _latency(session: CudaSession, tokens: int) -> dict[str, float]:
    batch = _batch(1, tokens)
    for _ in range(20):
        session.run(batch)
    p50, p99 = np.percentile([_call_ms(session, batch) for _ in range(_LATENCY_CALLS)], (50, 99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99}


def _memory_used_mb() -> int | None:
    """Return the GPU's used memory in MB, or `None` without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def _memory_after_threads(session: CudaSession) -> dict[str, int | None]:
    """Return the used memory before and after threads that call once each."""
    before = _memory_used_mb()
    for _ in range(_THREADS):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(session.run, _batch(1, 16)).result()
    return {"before_mb": before, "after_mb": _memory_used_mb()}


def measurements(bundle: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of one measurement after the other."""
    manifest = Manifest.read(bundle)
    device, texts = Device(kind="cuda"), _texts()
    tokenizer = bundle_tokenizer(bundle, manifest)
    expected = load(bundle, device="cpu", precision="fp32").outputs(texts)
    masked = manifest.variant("fp16", "cuda")
    variants = {"captured": masked, "masked": masked}
    variants |= {
        padding: v for padding, v in manifest.padding_variants(masked).items() if padding in (UNMASKED, PACKED)
    }
    for name, variant in variants.items():
        shapes = ShapeBuckets() if name == "captured" else NO_BUCKETS
        if name == "masked":
            shapes = ShapeBuckets(batch_sizes=())
        session = CudaSession(bundle / variant.model.file, manifest, device, shapes)
        budget = 1 if name in ("captured", UNMASKED) else 4096  # one text each: unmasked graphs take no padding
        model = Model(manifest.task, tokenizer, session, max_batch_tokens=budget)
        outputs = [model.outputs(texts) for _ in range(3)][-1]  # captured on the second use, replayed on the third
        found = {"max_abs_difference": max_abs_difference(outputs, expected)}
        yield f"outputs, {name}", found | dict(manifest.task.agreement(outputs, expected))
    session = CudaSession(bundle / masked.model.file, manifest, device)
    yield "first calls", first_calls(session, manifest.max_tokens)
    for tokens in (16, 128):
        yield f"latency, 1x{tokens}", _latency(session, min(tokens, manifest.max_tokens))
    yield "memory", _memory_after_threads(session)


@click.command(help=__doc__)
@path_option("--bundle", "Bundle with FP16 graphs for CUDA and an FP32 variant for the CPU.")
@path_option("--output", "Result file to write, in JSON.")
def main(bundle: Path, output: Path) -> None:
    """Measure, print, and write the result."""
    found: dict[str, Any] = {}
    for name, value in measurements(bundle):
        found[name] = value
        click.echo(f"{name}: {value}")
        write_result(output, {"bundle": bundle.name, "measurements": found})


if __name__ == "__main__":
    main()
