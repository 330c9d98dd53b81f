"""Show which attention kernel ONNX Runtime chooses on a GPU, by padding mode, length and the provider's `sdpa_kernel`.

python -m bert_bench.experiments.cuda_attention_kernels --bundle BUNDLE --output FILE

`sdpa_kernel` is a sum of FlashAttention (1), memory-efficient (2), cuDNN's (8) and unfused (16); `default` lets ONNX
Runtime choose. A bundle of a classifier also has attention for a single query, in `MultiHeadAttention`. The result is
written after every session.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_runtime import Manifest
from bert_runtime.devices import Device
from bert_runtime.gpu.cuda_provider import provider_options

__all__ = ["attention_kernels", "main"]

_SDPA_KERNELS = ("default", "19", "27")

_SHAPES = ((8, 64), (8, 63), (1, 16), (1, 17), (3, 128))
"""Sequences and tokens; odd numbers of tokens, too, to which the runtime never pads a masked batch."""

_TIMEOUT_S = 90

_RUN = """
import json, sys
import numpy as np, onnxruntime
path, options, shapes = sys.argv[1], *map(json.loads, sys.argv[2:4])
if hasattr(onnxruntime, "preload_dlls"):
    onnxruntime.preload_dlls()
session = onnxruntime.InferenceSession(path, providers=[("CUDAExecutionProvider", options)])
for shape in shapes:
    print("### " + "x".join(map(str, shape)), flush=True)
    ones = np.ones(shape, dtype=np.int64)
    feeds = {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones * 0}
    try:
        session.run(None, {node.name: feeds[node.name] for node in session.get_inputs()})
    except Exception as error:
        print("Error=" + type(error).__name__, flush=True)
"""


def attention_kernels(graph: Path, sdpa_kernel: str) -> dict[str, list[str]]:
    """Run a graph on batches of several shapes in a process of its own.

    Args:
        graph: the ONNX file.
        sdpa_kernel: value of the provider's option, or `default`.

    Returns:
        By shape, what ran: operator and kernel, such as `Attention EFFICIENT_ATTENTION`, or the error's type.
    """
    options = provider_options(Device(kind="cuda"), capture=False)
    options.pop("sdpa_kernel", None)
    if sdpa_kernel != "default":
        options["sdpa_kernel"] = sdpa_kernel
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, graph, json.dumps(options), json.dumps(_SHAPES)],
            env={**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"all": [f"more than {_TIMEOUT_S} s"]}
    parts = re.split(r"^### (.*)\n", done.stdout, flags=re.MULTILINE)[1:]
    if not parts:
        return {"all": [f"exit code {done.returncode}: {done.stdout[-300:]}"]}
    return {shape: _ran(text) for shape, text in zip(parts[::2], parts[1::2], strict=True)}


def _ran(text: str) -> list[str]:
    """Return what the debug output names, each once."""
    found = [f"{operator} {kernel}" for operator, kernel in re.findall(r"Operator=(\w+).*?SdpaKernel=(\w+)", text)]
    return sorted({*found, *re.findall(r"Error=(\w+)", text)})


@click.command(help=__doc__)
@path_option("--bundle", "Bundle with FP16 graphs for CUDA.")
@path_option("--output", "Result file to write, in JSON.")
def main(bundle: Path, output: Path) -> None:
    """Run every graph with every choice of kernels, print, and write the result."""
    manifest = Manifest.read(bundle)
    masked = manifest.variant("fp16", "cuda")
    found: dict[str, Any] = {}
    for variant in (masked, *manifest.padding_variants(masked).values()):
        for sdpa_kernel in _SDPA_KERNELS:
            name = f"{variant.padding}, sdpa_kernel {sdpa_kernel}"
            found[name] = attention_kernels(bundle / variant.model.file, sdpa_kernel)
            click.echo(f"{name}: {found[name]}")
            write_result(output, {"bundle": str(bundle.name), "attention_kernels": found})


if __name__ == "__main__":
    main()
