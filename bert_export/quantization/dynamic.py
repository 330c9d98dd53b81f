"""INT8 without calibration: what the plain recipe gives, and what `static` is measured against.

`DynamicQuantizeMatMul` finds the range of each activation at run time. Batch mates and padding share one range, so an
answer depends on them.
"""

from collections.abc import Sequence

import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    Linear,
    add_initializer,
    check_counts,
    insert_before,
    tidy,
)
from bert_export.quantization.projections import encoder_linears
from bert_export.quantization.weights import quantize_weight

__all__ = ["quantize_dynamic"]


def quantize_dynamic(model: ir.Model, expected: int, keep_fp32: Sequence[str] = ()) -> FusionCounts:
    """Quantizes the encoder's projections of a fused graph in place and returns how many.

    Projections of modules whose name ends in one of `keep_fp32`, such as `feed_forward.down`, stay as they are. Raises
    `FusionError` unless exactly `expected` projections were quantized.
    """
    quantized: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    found = encoder_linears(model, keep_fp32)
    for linear in found:
        if linear.weight not in quantized:  # layers that share a weight share its INT8 form
            quantized[linear.weight] = _quantized(linear)
        _replace(linear, *quantized[linear.weight])
    model.graph.opset_imports[MICROSOFT_DOMAIN] = 1
    tidy(model)
    return check_counts({"int8_matmul": len(found)}, {"int8_matmul": expected}, [])


def _quantized(linear: Linear) -> tuple[ir.Value, ir.Value]:
    """The INT8 weight and its scales as constants of the graph."""
    graph = linear.matmul.graph
    assert isinstance(graph, ir.Graph)
    weight, scale = quantize_weight(linear.weight_array)
    name = linear.weight.name
    return add_initializer(graph, f"{name}.int8", weight), add_initializer(graph, f"{name}.scale", scale)


def _replace(linear: Linear, weight: ir.Value, scale: ir.Value) -> None:
    """Puts one `DynamicQuantizeMatMul` in the place of MatMul and Add. Symmetric weights need no zero point.

    The input is read from the graph now: where it is a projection itself, its place may have been taken already.
    """
    (output,) = insert_before(
        linear.matmul,
        "DynamicQuantizeMatMul",
        [linear.matmul.inputs[0], weight, scale, None, linear.bias],
        like=linear.output,
        domain=MICROSOFT_DOMAIN,
    )
    linear.output.replace_all_uses_with(output)
