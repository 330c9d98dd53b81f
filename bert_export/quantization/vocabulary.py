"""Quantize the vocabulary's scores of sparse embeddings: with a small encoder they are most of the work.

The weight is rounded with GPTQ like those of the encoder. The input comes from a LayerNorm, whose channels the head
normalizes for this matmul alone, and is quantized without smoothing.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import add_initializer, constant, insert_before, operators, replace_value
from bert_export.quantization.calibrated_weight import quantize_for_inputs
from bert_export.quantization.calibration import Activations
from bert_export.vocabulary_pooling import FLOAT_POOLING_FUNCTIONS, vocabulary_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["quantize_vocabulary_pooling"]


def quantize_vocabulary_pooling(graph: ir.Model, activations: Mapping[str, Activations], bits: int) -> int:
    """Replace each call of `VocabularyMax` or `VocabularySum` by its quantized counterpart, in place.

    Args:
        graph: a fused FP32 graph.
        activations: what `measure_activations` returned for it.
        bits: 7 or 8 bits of the weight.

    Returns:
        The number of calls.
    """
    calls = [
        call
        for name in FLOAT_POOLING_FUNCTIONS
        for call in operators(graph, name)
        if constant(call.inputs[1]).shape[1] % 4 == 0  # as the native kernel needs it
    ]
    for call in calls:
        _quantize(graph, call, activations[str(call.inputs[0].name)] if call.inputs[0] is not None else None, bits)
    return len(calls)


def _quantize(graph: ir.Model, call: ir.Node, inputs: Activations | None, bits: int) -> None:
    x, embedding, bias, mask = call.inputs
    assert x is not None
    assert embedding is not None
    assert inputs is not None
    weight = quantize_for_inputs(np.ascontiguousarray(constant(embedding).T), [inputs], bits)
    ((scale, zero_point),) = weight.input_parameters
    int8_weight, weight_scales, x_scale, x_zero_point, shifted_bias = (
        add_initializer(graph.graph, f"vocabulary.{name}", np.asarray(array))
        for name, array in (
            ("int8", weight.quantized),
            ("scale", weight.scales),
            ("input_scale", scale),
            ("input_zero_point", zero_point),
            ("bias", constant(bias) + weight.bias_shift),
        )
    )
    like_uint8 = ir.Value(type=ir.TensorType(ir.DataType.UINT8), shape=x.shape)
    (uint8,) = insert_before(call, "QuantizeLinear", [x, x_scale, x_zero_point], like=like_uint8)
    output = call.outputs[0]
    (pooled,) = insert_before(
        call,
        f"Quantized{call.op_type}",
        [uint8, int8_weight, x_scale, weight_scales, x_zero_point, shifted_bias, mask],
        like=output,
        attributes={key: item.value for key, item in call.attributes.items()},
        domain=KERNEL_DOMAIN,
    )
    replace_value(output, pooled)
    replacement = pooled.producer()
    assert replacement is not None
    function = vocabulary_function(replacement)
    graph.graph.remove(call, safe=True)  # a second reader of the token table would keep that in FP32
    del graph.functions[call.op_identifier()]
    graph.functions[function.identifier()] = function
