"""Run a bundle's graphs on the stub GPU: `python stub_scenario.py BUNDLE`. The log of the stubs is cut into sections.

Prints as JSON, by padding mode, the operators that run on the CPU or copy values between it and the GPU.
"""

import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bert_runtime.bundle.manifest import MASKED, Manifest
from bert_runtime.devices import Device
from bert_runtime.gpu.cuda_provider import fallback_operators
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import NO_BUCKETS
from bert_runtime.tokenization import Batch


def section(name: str) -> None:
    """Start a section of the log."""
    with Path(os.environ["STUB_CUDA_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"### {name}\n")


def batch(batch_size: int, length: int) -> Batch:
    ids = np.full((batch_size, length), 5, dtype=np.int64)
    return Batch(ids, np.ones_like(ids), np.zeros_like(ids))


def memory_copies(session: CudaSession) -> dict[str, int]:
    """Count the nodes that ONNX Runtime adds to copy values between the CPU and the GPU within a run."""
    parts = session._session.get_provider_graph_assignment_info()
    return dict(Counter(node.op_type for part in parts for node in part.get_nodes() if "Memcpy" in node.op_type))


def main() -> None:
    bundle = Path(sys.argv[1])
    manifest = Manifest.read(bundle)
    found = {}
    for variant in manifest.variants_for("cuda") + tuple(
        manifest.padding_variants(manifest.variant("fp16", "cuda")).values()
    ):
        if variant.precision != "fp16":
            continue
        padding = variant.padding
        section(f"{padding} open")
        shapes = None if padding == MASKED else NO_BUCKETS
        session = CudaSession(bundle / variant.model.file, manifest, Device(kind="cuda"), shapes)
        found[padding] = {**fallback_operators(session._session), **memory_copies(session)}
        for use in ("first", "second", "third"):
            section(f"{padding} {use}")
            session.run(batch(1, 16))
        section(f"{padding} large")
        session.run(batch(24, 48))
        section(f"{padding} threads")
        for _ in range(3):  # pools whose threads end
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(session.run, [batch(1, 16)] * 8))
        section(f"{padding} shapes")
        for length in range(1, 49):
            session.run(batch(24, length))
    section("end")
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
