"""Store large embedding tables as 8-bit integers: the token embedding is more than half of a small model's file."""

import math

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import add_initializer, constant, graph_of, insert_before, operators
from bert_export.quantization.weights import quantize_weight

__all__ = ["MIN_ELEMENTS", "quantize_embeddings"]

MIN_ELEMENTS = 1 << 20
"""Smaller tables are not worth three more operators (a judgement)."""


def quantize_embeddings(graph: ir.Model, *, min_elements: int = MIN_ELEMENTS) -> list[str]:
    """Quantize large tables that are only gathered from, by ids that the graph is given: int8 [V, H], a scale per row.

    The rows that are gathered are converted back to float32. A table that a matmul reads as well, as in fill-mask
    models, stays in FP32.

    Args:
        graph: the graph.
        min_elements: smaller tables stay in FP32.

    Returns:
        The names of the quantized tables.
    """
    quantized = []
    for gather in operators(graph, "Gather"):
        table, ids = gather.inputs
        if table is None or table.const_value is None or len(table.consumers()) > 1:
            continue
        if ids is None or not ids.is_graph_input():  # positions, whose kernel reads float32: few, of most models
            continue
        shape, axis = table.const_value.shape, gather.attributes.get_int("axis", 0)
        if len(shape) != 2 or math.prod(shape.numpy()) < min_elements or axis != 0:
            continue
        _replace(gather, table, ids)
        quantized.append(str(table.name))
    return quantized


def _replace(gather: ir.Node, table: ir.Value, ids: ir.Value | None) -> None:
    """Replace a Gather of float32 rows by Gathers of int8 rows and of their scales, and their product."""
    graph, output = graph_of(gather), gather.outputs[0]
    quantized, scales = quantize_weight(constant(table).T)
    int8_table = add_initializer(graph, f"{table.name}.int8", np.ascontiguousarray(quantized.T))
    scale_table = add_initializer(graph, f"{table.name}.scale", scales[:, None])
    assert output.shape is not None
    like_int8 = ir.Value(type=ir.TensorType(ir.DataType.INT8))
    scale_shape = ir.Shape([*output.shape[:-1], 1])
    (rows,) = insert_before(gather, "Gather", [int8_table, ids], like=like_int8, shapes=[output.shape])
    (scale,) = insert_before(gather, "Gather", [scale_table, ids], like=output, shapes=[scale_shape])
    (cast,) = insert_before(gather, "Cast", [rows], like=output, attributes={"to": ir.DataType.FLOAT})
    (dequantized,) = insert_before(gather, "Mul", [cast, scale], like=output)
    output.replace_all_uses_with(dequantized)
