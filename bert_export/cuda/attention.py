"""Replace attention by com.microsoft's `Attention`, which contains the projection of query, key and value.

One kernel adds the bias and separates query, key and value, where Add and Split would be two. A last layer that the CPU
reduces to its first token attends for every token here, and the first is selected afterwards: with a single query, the
CUDA provider runs attention unfused, and the layer takes 17 kernels instead of 11 (counted with onnxruntime-gpu 1.31.1
on stub CUDA libraries, with a mask).

`MultiHeadAttention` on [B, S, N, 3, H] would launch as few kernels and run the same ones, but not on a CPU.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    NoMatch,
    add_initializer,
    as_linear,
    constant,
    graph_of,
    insert_before,
    producer,
    scope,
)

__all__ = ["CUDA_MASKED_SCORE", "MASK_INPUT", "additive_mask", "replace_attention", "unmasked_bias"]

CUDA_MASKED_SCORE = -10000.0
"""Added to the score of a masked token: its attention weight becomes 0, while a sequence with no other token still has
finite scores."""

MASK_INPUT = 5
"""Index of the additive mask among the inputs of com.microsoft's `Attention`."""


def replace_attention(node: ir.Node) -> str:
    """Replace a standard Attention on [B, S, H], and return the fusion that fired.

    Raises:
        NoMatch: the attention is causal or capped, its mask is none that `additive_mask` takes, or its operands are not
            projections that `merge_qkv` merged.
    """
    attributes = node.attributes
    if any(name in attributes and attributes[name].value for name in ("softcap", "is_causal")):
        raise NoMatch("expected attention in both directions without a soft cap")
    key_value = _merged_parts(node)
    selection = None if len(key_value.outputs) == 3 else _query_selection(node)
    inputs = _projection(node, key_value, selection)
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is not None:
        whole_mask = mask if selection is None else producer(mask, "Slice").inputs[0]
        assert whole_mask is not None
        inputs += [None, None, additive_mask(node, whole_mask)]
    source = inputs[0]
    assert source is not None
    scale = {"scale": attributes["scale"].as_float()} if "scale" in attributes else {}
    (output,) = insert_before(
        node,
        "Attention",
        inputs,
        like=source,
        attributes={"num_heads": attributes["q_num_heads"].as_int(), **scale},
        domain=MICROSOFT_DOMAIN,
    )
    if selection is not None:
        (output,) = insert_before(node, "Slice", [output, *selection.inputs[1:]], like=node.outputs[0])
    node.outputs[0].replace_all_uses_with(output)
    return "attention_with_projection"


def _merged_parts(attention: ir.Node) -> ir.Node:
    """Return the Split of a merged projection whose parts are query, key and value, or key and value."""
    split = producer(attention.inputs[2], "Split")
    operands = list(attention.inputs[3 - len(split.outputs) : 3])
    if list(split.outputs) != operands or len(operands) not in (2, 3):
        raise NoMatch("expected a merged projection of query, key and value, or of key and value")
    if len(set(constant(split.inputs[1]).tolist())) != 1:
        raise NoMatch(f"expected parts of one width, found {constant(split.inputs[1]).tolist()}")
    return split


def _query_selection(attention: ir.Node) -> ir.Node:
    """Return the Slice that selects the tokens with queries."""
    selection = producer(as_linear(attention.inputs[0]).input, "Slice")
    if constant(selection.inputs[3]).tolist() != [1]:
        raise NoMatch(f"expected tokens to be selected, found a Slice of axes {constant(selection.inputs[3]).tolist()}")
    return selection


def _projection(attention: ir.Node, split: ir.Node, selection: ir.Node | None) -> list[ir.Value | None]:
    """Return the input, weight and bias of the projection of query, key and value for every token."""
    merged = as_linear(split.inputs[0])
    graph = graph_of(attention)
    name = f"{scope(attention)}.qkv"
    if selection is None:
        bias = merged.bias or add_initializer(graph, f"{name}.bias", merged.bias_array)
        return [merged.input, merged.weight, bias]
    if selection.inputs[0] is not merged.input:
        raise NoMatch("expected query, key and value to be projected from the same tokens")
    linears = (as_linear(attention.inputs[0]), merged)
    weight = add_initializer(graph, f"{name}.weight", np.concatenate([x.weight_array for x in linears], axis=1))
    bias = add_initializer(graph, f"{name}.bias", np.concatenate([x.bias_array for x in linears]))
    return [merged.input, weight, bias]


def additive_mask(node: ir.Node, mask: ir.Value) -> ir.Value:
    """Return a float32 mask that is added to the scores [B, 1 or A, Q, S]; what it takes is inserted before `node`.

    Args:
        node: the attention.
        mask: a boolean mask [B, 1, Q, S], or one with a position bias [B, A, Q, S].

    Raises:
        NoMatch: the mask is neither.
    """
    if mask.dtype == ir.DataType.FLOAT:
        return _with_masked_score(mask)
    if mask.dtype != ir.DataType.BOOL:
        raise NoMatch(f"expected a boolean mask, found {mask.dtype}")
    kept, masked = (_scalar(node, *named) for named in (("kept", 0.0), ("masked", CUDA_MASKED_SCORE)))
    (bias,) = insert_before(node, "Where", [mask, kept, masked], like=mask)
    bias.type = ir.TensorType(ir.DataType.FLOAT)
    return bias


def _with_masked_score(mask: ir.Value) -> ir.Value:
    """Return a mask with a position bias, which has `CUDA_MASKED_SCORE` from now on where it masks."""
    where = producer(mask, "Where")
    constant(where.inputs[2])
    where.replace_input_with(2, _scalar(where, "masked", CUDA_MASKED_SCORE))
    return mask


def unmasked_bias(mask: ir.Value | None) -> ir.Value | None:
    """Return what an additive mask of this module adds to the scores of keys that are not masked.

    Returns:
        A position bias [1, A, S, S]; `None` if nothing is added.
    """
    kept = producer(mask, "Where").inputs[1]
    return None if kept is None or kept.const_value is not None else kept


def _scalar(node: ir.Node, name: str, number: float) -> ir.Value:
    """Return a float32 constant of the graph that `node` is in."""
    graph = graph_of(node)
    name = f"attention_bias.{name}"
    return graph.initializers.get(name) or add_initializer(graph, name, np.array(number, dtype=np.float32))
