"""Native kernels whose own memory does not fit into what the process may have.

As a program: `python short_memory.py LIBRARY FUNCTION` calls a function such that what ONNX Runtime needs fits, but
what the kernel packs does not; prints the error; and calls it again with memory enough.
"""

import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from hostile_graphs import HostileGraph
from numpy.typing import NDArray

_MEBIBYTE = 1 << 20


@contextmanager
def memory_limit(size_bytes: int) -> Iterator[None]:
    """Within the block, let the address space grow by so much at most; print the error that ends the block."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size_bytes, before[1]))
    try:
        yield
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        sys.stdout.write(f"{error}\n")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def open_session(graph: HostileGraph, library: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(graph.to_bytes(), options, providers=["CPUExecutionProvider"])


def call_linear(library: str) -> None:
    """Load a weight [2²⁰, 1] of 4 MiB, whose packed panel has 16 columns or more."""
    values = {
        "x": np.ones((1, 1 << 20), np.float32),
        "weight": np.ones((1 << 20, 1), np.float32),
        "bias": np.zeros(1, np.float32),
    }
    graph = HostileGraph("", None, "Linear", values, ["x"], {}, ["y"])
    with memory_limit(48 * _MEBIBYTE):
        open_session(graph, library)
    (y,) = open_session(graph, library).run(None, graph.inputs())
    assert y == 1 << 20


def call_attention(library: str, function: str) -> None:
    """Attend to 2¹⁵ tokens by one head of size 1, which takes 6 MiB of packed keys and values."""
    output = {"y_scale": np.asarray(np.float32(1)), "y_zero_point": np.asarray(np.uint8(0))}
    small, large = _attention_inputs(4), _attention_inputs(1 << 15)
    values: Mapping[str, Any] = {**small, **(output if function.startswith("Quantized") else {})}
    graph = HostileGraph("", None, function, values, [*small], {"num_heads": 1, "scale": 1.0}, ["y"])
    session = open_session(graph, library)
    session.run(None, small)
    with memory_limit(_MEBIBYTE):
        session.run(None, large)
    assert (session.run(None, small)[0] == 1).all()


def _attention_inputs(tokens: int) -> dict[str, NDArray[Any]]:
    """Return ones, and a mask that is never read, so that a large one takes no memory."""
    mask = np.zeros((1, 1, tokens, tokens), np.bool_)
    return {"qkv": np.ones((1, tokens, 3), np.float32), "mask": mask, "is_full": np.asarray(True)}


if __name__ == "__main__":
    if sys.argv[2] == "Linear":
        call_linear(sys.argv[1])
    else:
        call_attention(*sys.argv[1:])
