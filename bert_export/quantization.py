"""Dynamic INT8: encoder projections as `DynamicQuantizeMatMul`, everything else in FP32.

Weights are signed 8-bit with one scale per output channel; activations are quantized to unsigned 8-bit at run time with
one scale per tensor, inside the same kernel. Unsigned by signed is the only combination with a VNNI path on x64.
Embeddings, LayerNorm, softmax, GELU, residuals and the head stay in FP32.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bert_export.fusion.graph import FloatArray, Linear, add_initializer, insert_before, linears, scope
from bert_export.fusion.pipeline import FusionCounts, check_counts, tidy
from bert_models import EncoderConfig

__all__ = ["MICROSOFT_DOMAIN", "expected_projections", "quantize", "quantize_weight"]

MICROSOFT_DOMAIN = "com.microsoft"
"""ONNX Runtime's own operators."""


def quantize_weight(weight: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Symmetric 8-bit quantization per output channel: float32 [in, out] → int8 [in, out], scales float32 [out].

    `weight ≈ quantized · scale`. A channel of zeros gets scale 1.
    """
    scale = np.abs(weight).max(axis=0) / np.float32(127)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
    return np.clip(np.rint(weight / scale), -127, 127).astype(np.int8), scale


def expected_projections(config: EncoderConfig, fusions: FusionCounts) -> int:
    """How many projections a fused encoder has: merged ones, attention output, and feed-forward up and down per layer.

    A layer reduced to its first row projects the query on its own. Narrow embeddings are projected once more.
    """
    count = {name: each["found"] for name, each in fusions.items()}
    embeddings = int(config.embedding_size is not None)
    return embeddings + count["qkv_projection"] + 2 * count["kv_projection"] + 3 * count["attention"]


def quantize(model: ir.Model, expected: int, keep_fp32: Sequence[str] = ()) -> FusionCounts:
    """Quantizes the encoder's projections of a fused graph in place and returns how many.

    Projections of modules whose name ends in one of `keep_fp32`, such as `feed_forward.down`, stay as they are. Raises
    `FusionError` unless exactly `expected` projections were quantized.
    """
    quantized: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    scopes = ((linear, scope(linear.matmul)) for linear in linears(model))
    found = [each for each, name in scopes if name.startswith("encoder.") and not name.endswith(tuple(keep_fp32))]
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
