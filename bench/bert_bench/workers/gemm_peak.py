"""How fast this machine multiplies large matrices: what every speed is a share of."""

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np

from bert_runtime.machine import has_instruction_set

__all__ = ["measure_gemm_peaks"]

_ROWS, _INNER, _COLUMNS = 1024, 1024, 4096
_FLOPS = 2 * _ROWS * _INNER * _COLUMNS


def measure_gemm_peaks(threads: int, seconds: float) -> dict[str, float]:
    """GFLOP/s of a product of 1024×1024 by 1024×4096, the fastest call of so many seconds each.

    `fp32` is ONNX Runtime's MatMul, `int8` its DynamicQuantizeMatMul with the quantization of the activations inside,
    `bf16` PyTorch's product where PyTorch is installed and the processor computes bf16: one that it must imitate takes
    half a minute.
    """
    generator = np.random.default_rng(0)
    left = generator.standard_normal((_ROWS, _INNER), dtype=np.float32)
    right = generator.standard_normal((_INNER, _COLUMNS), dtype=np.float32)
    peaks = {
        "fp32": _fastest(_matmul(left, right, threads), seconds),
        "int8": _fastest(_int8_matmul(left, right, threads), seconds),
    }
    if has_instruction_set("bf16"):
        with suppress(ImportError):
            peaks["bf16"] = _fastest(_bf16_matmul(left, right, threads), seconds)
    return peaks


def _fastest(call: Callable[[], Any], seconds: float) -> float:
    """GFLOP/s of the fastest call."""
    call()
    best, end = float("inf"), perf_counter() + seconds
    while True:
        begin = perf_counter()
        call()
        best = min(best, perf_counter() - begin)
        if perf_counter() > end:
            break
    return _FLOPS / best / 1e9


def _matmul(left: Any, right: Any, threads: int) -> Callable[[], Any]:
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("MatMul", ["left", "right"], ["product"])
    return _session(node, [numpy_helper.from_array(right, "right")], left, threads, TensorProto.FLOAT)


def _int8_matmul(left: Any, right: Any, threads: int) -> Callable[[], Any]:
    from onnx import TensorProto, helper, numpy_helper

    scale = (np.abs(right).max(axis=0) / 127).astype(np.float32)
    node = helper.make_node(
        "DynamicQuantizeMatMul", ["left", "right", "scale", "zero"], ["product"], domain="com.microsoft"
    )
    weights = [
        numpy_helper.from_array(np.rint(right / scale).astype(np.int8), "right"),
        numpy_helper.from_array(scale, "scale"),
        numpy_helper.from_array(np.zeros(_COLUMNS, dtype=np.int8), "zero"),
    ]
    return _session(node, weights, left, threads, TensorProto.FLOAT)


def _session(node: Any, weights: list[Any], left: Any, threads: int, dtype: int) -> Callable[[], Any]:
    """A call of ONNX Runtime on a graph of one node whose input is `left`."""
    import onnxruntime
    from onnx import helper

    graph = helper.make_graph(
        [node], "peak", [helper.make_tensor_value_info("left", dtype, [_ROWS, _INNER])],
        [helper.make_tensor_value_info("product", dtype, [_ROWS, _COLUMNS])], weights,
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
