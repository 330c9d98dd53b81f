"""FP32 to FP16: weights and activations in half precision, between inputs and outputs that stay as they are.

Half precision is for the operators that gain by it and accumulate in FP32: matrix products, attention, normalization
(`stash_type` 1, and the runtime's strict mode), GELU, and what moves their values about. All others, such as the sums,
norms and quotients of pooling, stay in FP32, whose smallest divisors half precision would round to zero.
"""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import add_initializer, constant, insert_before, tidy

__all__ = ["LARGEST", "convert_to_fp16", "fp16_nodes"]

LARGEST = float(np.finfo(np.float16).max)
"""The largest number of half precision, 65504."""

_OPERATORS = frozenset(
    (
        "Add", "BiasGelu", "FastGelu", "Gather", "GatherND", "Gelu", "Gemm", "LayerNormalization", "MatMul",
        "MultiHeadAttention", "Relu", "SkipLayerNormalization", "Slice", "Split", "Tanh", "Where",
    )
)  # fmt: skip


def fp16_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that can run in FP16, in topological order."""
    return [
        node
        for node in model.graph
        if node.op_type in _OPERATORS
        and any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        and not any(_overflows(value) for value in node.inputs)
    ]


def _overflows(value: ir.Value | None) -> bool:
    """Whether a constant has no value in half precision, such as the −1e9 that a pooling masks with."""
    if value is None or value.const_value is None or value.dtype != ir.DataType.FLOAT:
        return False
    return bool(np.abs(constant(value)).max(initial=0) > LARGEST)


def convert_to_fp16(model: ir.Model, kept: Collection[str] = ()) -> int:
    """Converts a graph of `fuse_for_cuda` in place and returns how many nodes run in half precision.

    Args:
        model: the graph in FP32.
        kept: names of values; the nodes that compute them stay in FP32, with casts around them.
    """
    half = {node for node in fp16_nodes(model) if not any(value.name in kept for value in node.outputs)}
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for node in list(model.graph):
        target = ir.DataType.FLOAT16 if node in half else ir.DataType.FLOAT
        other = ir.DataType.FLOAT if node in half else ir.DataType.FLOAT16
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype != other:
                continue
            if (value, target) not in casts:
                casts[value, target] = _cast(node, value, target)
            node.replace_input_with(index, casts[value, target])
        if node in half:
            for value in node.outputs:
                if value.dtype == ir.DataType.FLOAT:
                    value.type = ir.TensorType(ir.DataType.FLOAT16)
    for index, value in enumerate(model.graph.outputs):
        if value.dtype == ir.DataType.FLOAT16:
            model.graph.outputs[index] = _output(model.graph, value)
    tidy(model)
    return len(half)


def _cast(node: ir.Node, value: ir.Value, target: ir.DataType) -> ir.Value:
    """`value` in the other precision: a constant at once, anything else by a Cast before `node`."""
    if value.const_value is not None:
        assert target == ir.DataType.FLOAT16  # constants are FP32, so none is ever cast back
        assert isinstance(node.graph, ir.Graph)
        return add_initializer(node.graph, f"{value.name}.half", constant(value).astype(np.float16))
    (cast,) = insert_before(node, "Cast", [value], like=value, attributes={"to": target})
    cast.type = ir.TensorType(target)
    return cast


def _output(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """A graph output back in FP32 under its own name."""
    name, value.name = value.name, None
    result = ir.Value(name=name, shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    graph.append(ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, outputs=[result]))
    return result
