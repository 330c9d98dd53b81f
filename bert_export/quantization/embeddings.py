"""Large embedding tables as 8-bit integers: more than half of a small model's file is its token embedding."""

import math

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import add_initializer, constant, insert_before, operators
from bert_export.quantization.weights import quantize_weight

__all__ = ["quantize_embeddings"]

_LEAST_VALUES = 1 << 20
"""Of a table that is worth three operators more."""


def quantize_embeddings(model: ir.Model, *, least_values: int = _LEAST_VALUES) -> list[str]:
    """Rounds large tables that rows are only looked up in, in place: int8 [V, H] with a scale per row.

    Rows that are read become float32 again. A table that is also a product's weight, as in fill-mask models, stays.

    Returns:
        the names of the tables.
    """
    done = []
    for gather in operators(model, "Gather"):
        table, ids = gather.inputs
        if table is None or table.const_value is None or len(table.consumers()) > 1:
            continue
        shape, axis = table.const_value.shape, gather.attributes.get_int("axis", 0)
        if len(shape) != 2 or math.prod(shape.numpy()) < least_values or axis != 0:
            continue
        _replace(gather, table, ids)
        done.append(str(table.name))
    return done


def _replace(gather: ir.Node, table: ir.Value, ids: ir.Value | None) -> None:
    """Looks up integers and their scale, and multiplies."""
    graph, rows = gather.graph, gather.outputs[0]
    assert isinstance(graph, ir.Graph)
    quantized, scales = quantize_weight(constant(table).T)
    parts = (("int8", np.ascontiguousarray(quantized.T)), ("scale", scales[:, None]))
    integers, steps = (add_initializer(graph, f"{table.name}.{part}", array) for part, array in parts)
    assert rows.shape is not None
    read = ir.Value(type=ir.TensorType(ir.DataType.INT8))
    (found,) = insert_before(gather, "Gather", [integers, ids], like=read, shapes=[rows.shape])
    (step,) = insert_before(gather, "Gather", [steps, ids], like=rows, shapes=[ir.Shape([*rows.shape[:-1], 1])])
    (widened,) = insert_before(gather, "Cast", [found], like=rows, attributes={"to": ir.DataType.FLOAT})
    (product,) = insert_before(gather, "Mul", [widened, step], like=rows)
    rows.replace_all_uses_with(product)
