"""Peak matmul throughput of this machine, which the reports relate the engines' FLOPs to."""

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np

from bert_runtime.machine import has_instruction_set

__all__ = ["measure_gemm_peaks"]

_M, _K, _N = 1024, 1024, 4096
"""The matmul [M, K] × [K, N]."""

_FLOPS = 2 * _M * _K * _N


def measure_gemm_peaks(threads: int, duration_s: float) -> dict[str, float]:
    """Return the GFLOP/s of the fastest 1024×1024 by 1024×4096 matmul by precision; a multiply-add is 2 FLOPs.

    `fp32` is ONNX Runtime's MatMul. `int8` is its DynamicQuantizeMatMul, activation quantization included. `bf16` is
    PyTorch's matmul, left out without PyTorch or without the CPU's bf16 instructions: emulated, it takes half a minute.

    Args:
        threads: intra-op threads.
        duration_s: seconds of calls per precision.
    """
    generator = np.random.default_rng(0)
    left = generator.standard_normal((_M, _K), dtype=np.float32)
    right = generator.standard_normal((_K, _N), dtype=np.float32)
    peaks = {
        "fp32": _peak_gflops(_matmul(left, right, threads), duration_s),
        "int8": _peak_gflops(_int8_matmul(left, right, threads), duration_s),
    }
    if has_instruction_set("bf16"):
        with suppress(ImportError):
            peaks["bf16"] = _peak_gflops(_bf16_matmul(left, right, threads), duration_s)
    return peaks


def _peak_gflops(call: Callable[[], Any], duration_s: float) -> float:
    """Return the GFLOP/s of the fastest call within the time, after an untimed one."""
    call()
    fastest_s, end = float("inf"), perf_counter() + duration_s
    while True:
        begin = perf_counter()
        call()
        fastest_s = min(fastest_s, perf_counter() - begin)
        if perf_counter() > end:
            break
    return _FLOPS / fastest_s / 1e9


def _matmul(left: Any, right: Any, threads: int) -> Callable[[], Any]:
    from onnx import helper, numpy_helper

    node = helper.make_node("MatMul", ["left", "right"], ["product"])
    return _single_node_call(node, [numpy_helper.from_array(right, "right")], left, threads)


def _int8_matmul(left: Any, right: Any, threads: int) -> Callable[[], Any]:
    from onnx import helper, numpy_helper

    scale = (np.abs(right).max(axis=0) / 127).astype(np.float32)
    node = helper.make_node(
        "DynamicQuantizeMatMul", ["left", "right", "scale", "zero"], ["product"], domain="com.microsoft"
    )
    weights = [
        numpy_helper.from_array(np.rint(right / scale).astype(np.int8), "right"),
        numpy_helper.from_array(scale, "scale"),
        numpy_helper.from_array(np.zeros(_N, dtype=np.int8), "zero"),
    ]
    return _single_node_call(node, weights, left, threads)


def _single_node_call(node: Any, weights: list[Any], left: Any, threads: int) -> Callable[[], Any]:
    """Return a call of ONNX Runtime on a graph of one node whose input is `left`."""
    import onnxruntime
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [node], "peak", [helper.make_tensor_value_info("left", TensorProto.FLOAT, [_M, _K])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [_M, _N])], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"left": left})


def _bf16_matmul(left: Any, right: Any, threads: int) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads)
    x, y = torch.from_numpy(left).bfloat16(), torch.from_numpy(right).bfloat16()
    return lambda: torch.mm(x, y)
