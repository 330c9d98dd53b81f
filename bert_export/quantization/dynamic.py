"""Quantize to INT8 without calibration: the baseline that `static` is compared with.

`DynamicQuantizeMatMul` finds the range of each activation tensor at run time. All sequences of a batch and the padding
share one range, so that predictions depend on them.
"""

import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    Linear,
    add_initializer,
    check_counts,
    graph_of,
    insert_before,
    tidy,
)
from bert_export.quantization.projections import encoder_linears
from bert_export.quantization.weights import quantize_weight

__all__ = ["quantize_dynamic"]


def quantize_dynamic(graph: ir.Model, expected: int) -> FusionCounts:
    """Quantize the encoder's projections of a fused graph in place.

    Args:
        graph: the graph.
        expected: how many projections there are to quantize, see `expected_projections`.

    Returns:
        The expected and found number of projections.

    Raises:
        FusionError: the two differ.
    """
    quantized: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    found = encoder_linears(graph)
    for linear in found:
        if linear.weight not in quantized:  # layers that share a weight share its INT8 constants
            quantized[linear.weight] = _quantize(linear)
        _replace(linear, *quantized[linear.weight])
    graph.graph.opset_imports[MICROSOFT_DOMAIN] = 1
    tidy(graph)
    return check_counts({"int8_matmul": len(found)}, {"int8_matmul": expected}, [])


def _quantize(linear: Linear) -> tuple[ir.Value, ir.Value]:
    """Add the INT8 weight and its scales to the graph."""
    graph = graph_of(linear.matmul)
    weight, scale = quantize_weight(linear.weight_array)
    name = linear.weight.name
    return add_initializer(graph, f"{name}.int8", weight), add_initializer(graph, f"{name}.scale", scale)


def _replace(linear: Linear, weight: ir.Value, scale: ir.Value) -> None:
    """Replace MatMul and Add by one `DynamicQuantizeMatMul`. Symmetric weights need no zero point.

    The input is read from the graph, not from `linear`: if a projection computes it, that may be replaced by now.
    """
    (output,) = insert_before(
        linear.matmul,
        "DynamicQuantizeMatMul",
        [linear.matmul.inputs[0], weight, scale, None, linear.bias],
        like=linear.output,
        domain=MICROSOFT_DOMAIN,
    )
    linear.output.replace_all_uses_with(output)
