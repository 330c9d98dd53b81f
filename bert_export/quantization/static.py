"""Quantize to INT8 with static scales, measured on calibration texts.

A projection becomes `QuantizeLinear` and `MatMulIntegerToFloat`. With static scales a prediction does not depend on the
rest of its batch, and no range is computed at run time, which pays for the smoothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    add_initializer,
    check_counts,
    graph_of,
    insert_before,
    tidy,
)
from bert_export.progress import StepCallback, no_progress
from bert_export.quantization.calibrated_weight import quantize_for_inputs
from bert_export.quantization.calibration import Activations
from bert_export.quantization.embeddings import quantize_embeddings
from bert_export.quantization.outlier_splitting import feed_forward_blocks, split_outlier_channels
from bert_export.quantization.projections import SharedWeight, encoder_linears, shared_weights
from bert_export.quantization.smoothing import SMOOTHING, fold_into_gated, fold_into_values, smooth
from bert_export.quantization.smoothing_strength import choose_strength
from bert_export.quantization.vocabulary import quantize_vocabulary_pooling

__all__ = ["quantize"]


def quantize(
    graph: ir.Model,
    expected: int,
    activations: Mapping[str, Activations],
    keep_fp32: Sequence[str] = (),
    weight_bits: int = 8,
    on_step: StepCallback = no_progress,
) -> tuple[FusionCounts, dict[str, Any]]:
    """Quantize the encoder's projections and large embeddings of a fused graph in place.

    Outliers of the activations are removed first: by SmoothQuant, folded into the values where attention comes before
    and into `up` where a gate does, and by splitting channels in other feed-forward blocks. Then weights are rounded
    with GPTQ.

    Args:
        graph: the graph.
        expected: how many projections there are to quantize, see `expected_projections`.
        activations: what `measure_activations` returned for the same graph.
        keep_fp32: ends of the names of modules that stay in FP32, such as `feed_forward.down`.
        weight_bits: 8, or 7, with which u8 × s8 GEMM saturates on no processor.
        on_step: called after every feed-forward block whose channels were split, and every weight that was quantized.

    Returns:
        The expected and found number of projections, and the recipe as the manifest states it.

    Raises:
        FusionError: the numbers differ.
    """
    found = encoder_linears(graph, keep_fp32)
    projections = shared_weights(found, activations)
    folded = [*fold_into_values(projections), *fold_into_gated(projections)]
    blocks = feed_forward_blocks(projections)
    num_steps = len(blocks) + len(projections)
    splits = []
    for block in blocks:
        splits.append(split_outlier_channels(block))
        on_step(len(splits), num_steps)
    downs = [block.down for block in blocks]
    smoothed = [projection for projection in projections if projection not in folded and projection not in downs]
    strengths = {block.up: choose_strength(block, weight_bits) for block in blocks}
    for projection in smoothed:
        smooth(projection, strengths.get(projection, SMOOTHING))
    for done, projection in enumerate(projections, start=len(blocks) + 1):
        _replace(projection, weight_bits)
        on_step(done, num_steps)
    vocabularies = quantize_vocabulary_pooling(graph, activations, weight_bits)
    graph.graph.opset_imports[MICROSOFT_DOMAIN] = 1
    tables = quantize_embeddings(graph)
    tidy(graph)
    # Bundles keep the keys split_neurons and added_neurons: how many channels were split, and how many copies added.
    recipe = {
        "scales": "static",
        "weight_bits": weight_bits,
        "smoothing": SMOOTHING,
        "smoothed": len(smoothed),
        "smoothed_in_values": len(folded),
        **({"feed_forward_smoothing": list(strengths.values())} if strengths else {}),
        "split_neurons": sum(int((split.copies > 0).sum()) for split in splits),
        "added_neurons": sum(int(split.copies.sum()) for split in splits),
        "kept_fp32": list(keep_fp32),
        "embeddings": tables,
        **({"vocabulary_poolings": vocabularies} if vocabularies else {}),
    }
    return check_counts({"int8_matmul": len(found)}, {"int8_matmul": expected}, []), recipe


def _replace(projection: SharedWeight, bits: int) -> None:
    """Replace MatMul and Add by an INT8 matmul, whose weight is rounded for the inputs as they are quantized."""
    graph = graph_of(projection.linears[0].matmul)
    weight = quantize_for_inputs(projection.weight, projection.inputs, bits)
    name, bias = projection.linears[0].weight.name, projection.bias + weight.bias_shift
    constants = [
        add_initializer(graph, f"{name}.{part}", array)
        for part, array in (("int8", weight.quantized), ("scale", weight.scales), ("bias", bias))
    ]
    for linear, (scale, zero_point) in zip(projection.linears, weight.input_parameters, strict=True):
        _insert(linear.matmul, linear.output, constants, scale, zero_point)


def _insert(
    matmul: ir.Node, like: ir.Value, constants: Sequence[ir.Value], scale: np.float32, zero_point: np.uint8
) -> None:
    """Replace a MatMul, whose output `like` was, by QuantizeLinear and MatMulIntegerToFloat.

    `constants` are the quantized weight, its scales and the bias.
    """
    graph, source, (weight, scales, bias) = graph_of(matmul), matmul.inputs[0], constants
    assert source is not None
    input_scale, input_zero_point = (
        add_initializer(graph, f"{weight.name}.input_{part}", np.asarray(value))
        for part, value in (("scale", scale), ("zero_point", zero_point))
    )
    like_uint8 = ir.Value(type=ir.TensorType(ir.DataType.UINT8), shape=source.shape)
    (uint8,) = insert_before(matmul, "QuantizeLinear", [source, input_scale, input_zero_point], like=like_uint8)
    (output,) = insert_before(
        matmul, "MatMulIntegerToFloat", [uint8, weight, input_scale, scales, input_zero_point, None, bias],
        like=like, domain=MICROSOFT_DOMAIN,
    )  # fmt: skip
    like.replace_all_uses_with(output)
