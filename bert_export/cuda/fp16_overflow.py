"""Measure which values of a graph are too large for FP16."""

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from bert_export.cuda.attention import CUDA_MASKED_SCORE
from bert_export.cuda.fp16 import FP16_MAX, is_convertible
from bert_export.onnx_graph import constant
from bert_export.parity import probe_batches
from bert_export.temporary_session import temporary_session
from bert_export.variants import Probe
from bert_models import TaskModel
from bert_runtime.inputs import as_text_input
from bert_runtime.tokenization import Batch, pad

__all__ = ["SAFE_MAX", "find_fp16_overflows", "max_abs_values", "overflow_batches"]

SAFE_MAX = FP16_MAX / 8
"""Maximum of a value on the measured texts. Other texts may give larger ones, and so may the terms of a sum; the factor
is a judgement."""

_MAX_TEXTS = 64
"""Texts that activations are measured on. Every text brings the outliers out, so that few suffice (a judgement)."""


def overflow_batches(torch_model: TaskModel, probe: Probe) -> list[Batch]:
    """Return the batches to measure activations on: texts one by one, since padding adds no values, and random ids."""
    texts = [as_text_input(text) for text in probe.texts[:_MAX_TEXTS]]
    encoded = probe.tokenizer.encode(torch_model.task.prefixed(texts))
    windows = [window for windows in encoded for window in windows]
    batches = [pad([window], probe.tokenizer.pad_token_id) for window in windows[: 2 * _MAX_TEXTS]]
    return [*batches, *probe_batches(torch_model, probe.tokenizer.max_tokens).values()]


def find_fp16_overflows(
    graph: ir.Model, batches: Iterable[Batch], can_be_fp16: Callable[[ir.Node], bool] = is_convertible
) -> dict[str, float]:
    """Find the nodes of an FP32 graph that must not run in FP16.

    Those are nodes with an output, input or constant whose absolute value exceeds `SAFE_MAX`, or is not finite, on any
    of the batches. Inputs count as well as outputs: normalization adds before it scales. So does the projection that an
    attention contains: a CPU computes it in FP32, so that parity would not show its overflow.

    Args:
        graph: a graph of `fuse_for_cuda` or for TensorRT, in FP32.
        batches: what to run it on.
        can_be_fp16: returns whether a node may run in FP16; by default those that `convert_to_fp16` converts. Where a
            node makes the mask, its scores are large on purpose and not measured.

    Returns:
        The maximum absolute value of each such node, by the name of its first output.
    """
    measured = max_abs_values(graph, batches, can_be_fp16)
    overflows = {}
    for node in _measured_nodes(graph, can_be_fp16):
        maxima = [measured[str(value.name)] for value in node.outputs if value.dtype == ir.DataType.FLOAT]
        maxima.append(measured.get(_projection_name(node), 0.0))
        for value in node.inputs:
            if value is None or value.dtype != ir.DataType.FLOAT:
                continue
            if value.const_value is None:
                maxima.append(measured.get(str(value.name), 0.0))
            else:
                maxima.append(float(np.abs(constant(value)).max(initial=0)))
        if not max(maxima) <= SAFE_MAX:
            overflows[str(node.outputs[0].name)] = max(maxima)
    return overflows


def _measured_nodes(graph: ir.Model, can_be_fp16: Callable[[ir.Node], bool]) -> list[ir.Node]:
    """Return the nodes that can run in FP16, except those that make the mask."""
    return [node for node in graph.graph if can_be_fp16(node) and not _makes_mask(node)]


def _makes_mask(node: ir.Node) -> bool:
    """Return whether a node sets some scores to a constant so low that they count for nothing."""
    chosen = [value for value in node.inputs[1:] if value is not None and value.const_value is not None]
    return node.op_type == "Where" and any(float(constant(value).min()) <= CUDA_MASKED_SCORE for value in chosen)


def max_abs_values(
    graph: ir.Model, batches: Iterable[Batch], can_be_fp16: Callable[[ir.Node], bool] = is_convertible
) -> dict[str, float]:
    """Return the maximum absolute element over all batches of each value that can be in FP16, by name."""
    measured, names = _with_max_outputs(graph, can_be_fp16)
    maxima = np.zeros(len(names))
    with temporary_session(measured) as run:
        for batch in batches:
            found = run([_max_name(name) for name in names], batch)
            maxima = np.maximum(maxima, np.array(found, dtype=np.float64))  # propagates NaN
    return dict(zip(names, maxima.tolist(), strict=True))


def _with_max_outputs(graph: ir.Model, can_be_fp16: Callable[[ir.Node], bool]) -> tuple[ir.Model, list[str]]:
    """Return a copy with an output for the maximum of each measured value, and the values' names."""
    measured = graph.clone()
    values: dict[str, ir.Value] = {}
    for node in _measured_nodes(measured, can_be_fp16):
        values |= {str(value.name): value for value in node.outputs if value.dtype == ir.DataType.FLOAT}
        if node.op_type == "Attention":
            product = ir.node("MatMul", node.inputs[:2])
            measured.graph.append(product)
            values[_projection_name(node)] = product.outputs[0]
    outputs = list(measured.graph.outputs)
    for name, value in values.items():
        absolute = ir.node("Abs", [value])
        largest = ir.node("ReduceMax", [absolute.outputs[0]], {"keepdims": 0})
        largest.outputs[0].name = _max_name(name)
        largest.outputs[0].type, largest.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        measured.graph.extend([absolute, largest])
        outputs.append(largest.outputs[0])
    measured.graph.outputs[:] = outputs
    return measured, list(values)


def _projection_name(node: ir.Node) -> str:
    """Name the projection that an Attention contains and does not put out."""
    return f"projection of {node.outputs[0].name}"


def _max_name(name: str) -> str:
    return f"maximum of {name}"
