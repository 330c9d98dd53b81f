"""Outline the LayerNormalization of a residual sum, with and without the quantization of its result."""

import onnx_ir as ir

from bert_export.function_calls import call_function
from bert_export.onnx_graph import NoMatch, constant, producer, sole_consumer

__all__ = ["outline_norm"]


def _residual_sum(norm: ir.Node) -> tuple[ir.Node, bool]:
    """Return the Add of a residual that a LayerNormalization reads, and whether the kernels know it as post-norm.

    The residual that the next block adds to is the normalized sum (post-norm), or the sum itself (pre-norm).
    """
    add = producer(norm.inputs[0], "Add")
    shapes = [None if value is None or value.shape is None else [*value.shape] for value in add.inputs]
    if shapes[0] is None or shapes[0] != shapes[1] or len(shapes[0]) != 3:  # a table of positions is broadcast
        raise NoMatch(f"expected two tensors of one shape, found {shapes}")
    is_post_norm = len(add.outputs[0].uses()) == 1
    if not is_post_norm and len(norm.outputs[0].uses()) != 1:
        raise NoMatch("expected either the sum or the normalized sum to be read by others")
    return add, is_post_norm


def outline_norm(norm: ir.Node) -> str:
    """Outline a sum, its LayerNormalization, and the quantization of the result if there is one.

    Returns:
        The function's name.

    Raises:
        NoMatch: the node is not the LayerNormalization of a residual sum.
    """
    try:
        return _outline_add_norm_quantize(norm)
    except NoMatch:
        return _outline_add_norm(norm)


def _outline_add_norm(norm: ir.Node) -> str:
    add, is_post_norm = _residual_sum(norm)
    inputs = [*add.inputs, *norm.inputs[1:3]]
    for value in inputs[2:]:
        constant(value)
    outputs = [norm.outputs[0]] if is_post_norm else [add.outputs[0], norm.outputs[0]]
    attributes = {"epsilon": norm.attributes["epsilon"].as_float()}
    return call_function(norm, "AddNorm" if is_post_norm else "AddPreNorm", inputs, outputs, attributes)


def _outline_add_norm_quantize(norm: ir.Node) -> str:
    add, is_post_norm = _residual_sum(norm)
    for smooth in norm.outputs[0].consumers():
        if smooth.op_type != "Mul" or smooth.inputs[0] is not norm.outputs[0]:
            continue
        quantize = sole_consumer(smooth.outputs[0], "QuantizeLinear")
        inputs = [*add.inputs, *norm.inputs[1:3], smooth.inputs[1], *quantize.inputs[1:]]
        for value in inputs[2:]:
            constant(value)
        attributes = {"epsilon": norm.attributes["epsilon"].as_float()}
        name, first = ("AddNormQuantize", norm) if is_post_norm else ("AddPreNormQuantize", add)
        return call_function(norm, name, inputs, [first.outputs[0], quantize.outputs[0]], attributes)
    raise NoMatch("expected the output to be smoothed and quantized")
