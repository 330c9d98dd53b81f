"""INT8 with scales that were measured on calibration texts.

A projection becomes `QuantizeLinear` and `MatMulIntegerToFloat`. With fixed scales an answer does not depend on what
else is in its batch, and the range need not be looked for at run time, which pays for the smoothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import MICROSOFT_DOMAIN, FusionCounts, add_initializer, check_counts, insert_before, tidy
from bert_export.quantization.calibration import Activations
from bert_export.quantization.embeddings import quantize_embeddings
from bert_export.quantization.outlier_splitting import feed_forward_blocks, split_outlier_channels
from bert_export.quantization.projections import SharedWeight, encoder_linears, shared_weights
from bert_export.quantization.smoothing import SMOOTHING, fold_into_values, smooth
from bert_export.quantization.weights import gptq_quantize
from bert_runtime.numerics import Float32Array

__all__ = ["quantize"]


def quantize(
    model: ir.Model,
    expected: int,
    activations: Mapping[str, Activations],
    keep_fp32: Sequence[str] = (),
    weight_bits: int = 8,
) -> tuple[FusionCounts, dict[str, Any]]:
    """Quantizes the encoder's projections and large embeddings of a fused graph in place.

    Args:
        model: the graph.
        expected: how many projections there are to quantize; raises `FusionError` where it is another number.
        activations: what `measure_activations` saw in the same graph.
        keep_fp32: ends of names of modules whose projections stay as they are, such as `feed_forward.down`.
        weight_bits: 8, or 7 for weights that no processor's products of bytes saturate with.

    Returns:
        how many were quantized, and the recipe as the manifest states it.
    """
    found = encoder_linears(model, keep_fp32)
    projections = shared_weights(found, activations)
    folded = fold_into_values(projections)
    blocks = feed_forward_blocks(projections)
    splits = [split_outlier_channels(block) for block in blocks]
    smoothed = [each for each in projections if each not in folded and all(each is not down for _, down, _ in blocks)]
    for each in smoothed:
        smooth(each)
    for each in projections:
        _replace(each, weight_bits)
    model.graph.opset_imports[MICROSOFT_DOMAIN] = 1
    tables = quantize_embeddings(model)
    tidy(model)
    recipe = {
        "scales": "static",
        "weight_bits": weight_bits,
        "smoothing": SMOOTHING,
        "smoothed": len(smoothed),
        "smoothed_in_values": len(folded),
        "split_neurons": sum(int((split.copies > 0).sum()) for split in splits),
        "added_neurons": sum(int(split.copies.sum()) for split in splits),
        "kept_fp32": list(keep_fp32),
        "embeddings": tables,
    }
    return check_counts({"int8_matmul": len(found)}, {"int8_matmul": expected}, []), recipe


def _replace(projection: SharedWeight, bits: int) -> None:
    """Puts integer products in the place of MatMul and Add, rounding the weight for the inputs as they are rounded."""
    graph = projection.linears[0].matmul.graph
    assert isinstance(graph, ir.Graph)
    ranges = [_scale(each) for each in projection.inputs]
    rounded = [_rounded(each.samples, *range_) for each, range_ in zip(projection.inputs, ranges, strict=True)]
    inputs = np.concatenate(rounded)
    quantized, scales = gptq_quantize(projection.weight, inputs, bits)
    # Rounding errors that do not average out move the output as a whole, which the bias can undo.
    shift = projection.samples.mean(axis=0) @ projection.weight - inputs.mean(axis=0) @ (quantized * scales)
    name = projection.linears[0].weight.name
    constants = [
        add_initializer(graph, f"{name}.{part}", array)
        for part, array in (("int8", quantized), ("scale", scales), ("bias", projection.bias + shift))
    ]
    for linear, (scale, zero_point) in zip(projection.linears, ranges, strict=True):
        _insert(linear.matmul, linear.output, constants, scale, zero_point)


def _insert(
    matmul: ir.Node, like: ir.Value, constants: Sequence[ir.Value], scale: np.float32, zero_point: np.uint8
) -> None:
    """Quantizes the input of a MatMul and multiplies it by a quantized weight, its scales and its bias."""
    graph, source, (weight, scales, bias) = matmul.graph, matmul.inputs[0], constants
    assert isinstance(graph, ir.Graph)
    assert source is not None
    step, zero = (
        add_initializer(graph, f"{weight.name}.input_{part}", np.asarray(value))
        for part, value in (("scale", scale), ("zero_point", zero_point))
    )
    (bytes_,) = insert_before(
        matmul, "QuantizeLinear", [source, step, zero], like=ir.Value(type=ir.TensorType(ir.DataType.UINT8)),
        shapes=[source.shape],
    )  # fmt: skip
    (output,) = insert_before(
        matmul, "MatMulIntegerToFloat", [bytes_, weight, step, scales, zero, None, bias], like=like,
        domain=MICROSOFT_DOMAIN,
    )  # fmt: skip
    like.replace_all_uses_with(output)


def _scale(inputs: Activations) -> tuple[np.float32, np.uint8]:
    """Step and zero point of the 8-bit range that holds all of the inputs, and zero exactly."""
    low, high = min(0.0, float(inputs.low.min())), max(0.0, float(inputs.high.max()))
    scale = np.float32(max(high - low, 1e-8) / 255)
    return scale, np.uint8(np.clip(np.rint(-low / scale), 0, 255))


def _rounded(samples: Float32Array, scale: np.float32, zero_point: np.uint8) -> Float32Array:
    """The samples as the integer product sees them."""
    steps = np.clip(np.rint(samples / scale) + np.float32(zero_point), 0, 255)
    rounded: Float32Array = (steps - np.float32(zero_point)) * scale
    return rounded
