"""Convert weights and activations of a graph from FP32 to FP16; its inputs and outputs keep their types.

FP16 is for the operators that gain by it and accumulate in FP32: matmul, attention, normalization (`stash_type` 1, and
the runtime's strict mode), GELU, and those that only move values. All others, such as the sums, norms and quotients of
pooling, stay in FP32: FP16 would round their smallest divisors to zero.
"""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import add_initializer, constant, graph_of, insert_before, tidy

__all__ = ["FP16_MAX", "convert_to_fp16", "fp16_nodes", "has_float_output", "is_convertible"]

FP16_MAX = float(np.finfo(np.float16).max)
"""The largest finite FP16 value, 65504."""

_FP16_OPERATORS = frozenset(
    (
        "Add", "Attention", "BiasGelu", "FastGelu", "Gather", "GatherND", "Gelu", "Gemm", "LayerNormalization",
        "MatMul", "Relu", "Reshape", "SkipLayerNormalization", "Slice", "Split", "Tanh", "Where",
    )
)  # fmt: skip


def fp16_nodes(graph: ir.Model) -> list[ir.Node]:
    """Return the nodes that can run in FP16, in topological order."""
    return [node for node in graph.graph if is_convertible(node)]


def is_convertible(node: ir.Node) -> bool:
    """Return whether `convert_to_fp16` can let a node run in FP16."""
    return (
        node.op_type in _FP16_OPERATORS
        and has_float_output(node)
        and not any(_constant_overflows(value) for value in node.inputs)
    )


def has_float_output(node: ir.Node) -> bool:
    """Return whether a node of a graph in FP32 computes floating-point numbers."""
    return any(value.dtype == ir.DataType.FLOAT for value in node.outputs)


def _constant_overflows(value: ir.Value | None) -> bool:
    """Return whether `value` is a constant beyond the range of FP16, such as the −1e9 that a pooling masks with."""
    if value is None or value.const_value is None or value.dtype != ir.DataType.FLOAT:
        return False
    return bool(np.abs(constant(value)).max(initial=0) > FP16_MAX)


def convert_to_fp16(graph: ir.Model, keep_fp32: Collection[str] = ()) -> int:
    """Convert a graph of `fuse_for_cuda` from FP32 to FP16 in place.

    Args:
        graph: the graph in FP32.
        keep_fp32: names of values; the nodes that compute them stay in FP32, with casts around them.

    Returns:
        The number of nodes that run in FP16.
    """
    converted = {node for node in fp16_nodes(graph) if not any(value.name in keep_fp32 for value in node.outputs)}
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for node in list(graph.graph):
        wanted = ir.DataType.FLOAT16 if node in converted else ir.DataType.FLOAT
        other = ir.DataType.FLOAT if node in converted else ir.DataType.FLOAT16
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype != other:
                continue
            if (value, wanted) not in casts:
                casts[value, wanted] = _cast(node, value, wanted)
            node.replace_input_with(index, casts[value, wanted])
        if node in converted:
            for value in node.outputs:
                if value.dtype == ir.DataType.FLOAT:
                    value.type = ir.TensorType(ir.DataType.FLOAT16)
    for index, value in enumerate(graph.graph.outputs):
        if value.dtype == ir.DataType.FLOAT16:
            graph.graph.outputs[index] = _cast_output(graph.graph, value)
    tidy(graph)
    return len(converted)


def _cast(node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return `value` as `dtype`: constants are converted now, others by a Cast before `node`."""
    if value.const_value is not None:
        assert dtype == ir.DataType.FLOAT16  # constants are FP32, so none is ever cast back
        return add_initializer(graph_of(node), f"{value.name}.fp16", constant(value).astype(np.float16))
    (cast,) = insert_before(node, "Cast", [value], like=value, attributes={"to": dtype})
    cast.type = ir.TensorType(dtype)
    return cast


def _cast_output(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Cast a graph output back to FP32; the result takes its name."""
    name, value.name = value.name, None
    result = ir.Value(name=name, shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    graph.append(ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, outputs=[result]))
    return result
