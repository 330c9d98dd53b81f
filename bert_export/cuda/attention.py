"""Replace attention by the operators of ONNX Runtime that add its projections' biases themselves.

A layer whose query, key and value are projected by one matmul becomes com.microsoft's `Attention`, which contains the
projection: one kernel adds the bias and separates query, key and value, where Add and Split would be two. A last layer
that is reduced to its first token projects the query from another input, and becomes `MultiHeadAttention` with a bias.

Both run the same attention kernels (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert/attention.cc), and the CPU
provider has both. `MultiHeadAttention` on [B, S, N, 3, H] would launch as few, but not run on a CPU.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    Linear,
    NoMatch,
    add_initializer,
    as_linear,
    constant,
    insert_before,
    producer,
    scope,
)

__all__ = ["MASKED_SCORE", "MASK_INPUT", "additive_mask", "replace_attention"]

MASKED_SCORE = -10000.0
"""Added to the score of a masked token: its attention weight becomes 0, while a sequence with no other token still has
finite scores."""

MASK_INPUT = 5
"""Index of the additive mask among the inputs of com.microsoft's `Attention` and `MultiHeadAttention`."""


def replace_attention(node: ir.Node) -> str:
    """Replace a standard Attention on [B, S, H] with a boolean mask, or with none.

    Returns:
        The fusion that fired: `attention_with_projection` or `multi_head_attention`.

    Raises:
        NoMatch: The attention is causal or capped, its mask is additive, or its operands are not projections that
            `merge_qkv` merged.
    """
    attributes = node.attributes
    if any(name in attributes and attributes[name].value for name in ("softcap", "is_causal")):
        raise NoMatch("expected attention in both directions without a soft cap")
    merged = _merged_parts(node)
    inputs = _projection(node) if len(merged.outputs) == 3 else _projected(node, merged)
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is not None:
        inputs += [None] * (MASK_INPUT - len(inputs)) + [additive_mask(node, mask)]
    scale = {"scale": attributes["scale"].as_float()} if "scale" in attributes else {}
    (output,) = insert_before(
        node,
        "Attention" if len(merged.outputs) == 3 else "MultiHeadAttention",
        inputs,
        like=node.outputs[0],
        attributes={"num_heads": attributes["q_num_heads"].as_int(), **scale},
        domain=MICROSOFT_DOMAIN,
    )
    node.outputs[0].replace_all_uses_with(output)
    return "attention_with_projection" if len(merged.outputs) == 3 else "multi_head_attention"


def _merged_parts(attention: ir.Node) -> ir.Node:
    """Return the Split of a merged projection whose parts are query, key and value, or key and value."""
    split = producer(attention.inputs[2], "Split")
    operands = list(attention.inputs[3 - len(split.outputs) : 3])
    if list(split.outputs) != operands or len(operands) not in (2, 3):
        raise NoMatch("expected a merged projection of query, key and value, or of key and value")
    if len(set(constant(split.inputs[1]).tolist())) != 1:
        raise NoMatch(f"expected parts of one width, found {constant(split.inputs[1]).tolist()}")
    return split


def _projection(attention: ir.Node) -> list[ir.Value | None]:
    """Return the input, weight and bias of the merged projection."""
    projection = as_linear(producer(attention.inputs[0], "Split").inputs[0])
    return [projection.input, projection.weight, _bias(attention, [projection])]


def _projected(attention: ir.Node, split: ir.Node) -> list[ir.Value | None]:
    """Return query, key and value before their biases, and the concatenated bias."""
    query, merged = as_linear(attention.inputs[0]), as_linear(split.inputs[0])
    key, value = insert_before(
        attention, "Split", [merged.matmul.outputs[0], split.inputs[1]], like=split.outputs, attributes={"axis": -1}
    )
    return [query.matmul.outputs[0], key, value, _bias(attention, [query, merged])]


def _bias(attention: ir.Node, linears: list[Linear]) -> ir.Value:
    """Return the concatenated biases as a constant."""
    if len(linears) == 1 and linears[0].bias is not None:
        return linears[0].bias
    graph = attention.graph
    assert isinstance(graph, ir.Graph)
    biases = np.concatenate([linear.bias_array for linear in linears])
    return add_initializer(graph, f"{scope(attention)}.qkv.bias", biases)


def additive_mask(node: ir.Node, mask: ir.Value) -> ir.Value:
    """Convert a boolean mask [B, 1, Q, S] to a float32 one that is added to the scores; inserted before `node`.

    Raises:
        NoMatch: The mask is not boolean.
    """
    if mask.dtype != ir.DataType.BOOL:
        raise NoMatch(f"expected a boolean mask, found {mask.dtype}")
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    constants = []
    for name, number in (("attention_bias.kept", 0.0), ("attention_bias.masked", MASKED_SCORE)):
        existing = graph.initializers.get(name)
        constants.append(existing or add_initializer(graph, name, np.array(number, dtype=np.float32)))
    (bias,) = insert_before(node, "Where", [mask, *constants], like=mask)
    bias.type = ir.TensorType(ir.DataType.FLOAT)
    return bias
