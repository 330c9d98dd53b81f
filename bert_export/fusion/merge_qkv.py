"""Merge the projections of query, key and value into one matmul with concatenated weights, and a Split.

One large matmul reads its input once and keeps the cores busier than three small ones. With dynamic quantization, the
input is also quantized once instead of three times.
"""

import numpy as np
import onnx_ir as ir

from bert_export.fusion.rotary import rotary_source
from bert_export.onnx_graph import Linear, NoMatch, add_initializer, as_linear, graph_of, insert_before, scope

__all__ = ["merge_linears", "merge_qkv"]


def merge_qkv(attention: ir.Node) -> str:
    """Merge the projections of an Attention node that share an input.

    Where the query is computed for the first token alone, only key and value share theirs.

    Returns:
        The fusion that fired: `qkv_projection` or `kv_projection`.

    Raises:
        NoMatch: an operand is not a projection, or key and value do not share an input.
    """
    query, key, value = (as_linear(rotary_source(operand)) for operand in attention.inputs[:3])
    if key.input is not value.input:
        raise NoMatch(f"key and value of {scope(attention)} are projected from different values")
    merged = [query, key, value] if query.input is key.input else [key, value]
    merge_linears(merged, f"{scope(attention)}.{'qkv' if len(merged) == 3 else 'kv'}")
    return "qkv_projection" if len(merged) == 3 else "kv_projection"


def merge_linears(linears: list[Linear], name: str) -> None:
    """Replace projections of one input by one projection, called `name`, and a Split, before the first of them."""
    first = linears[0]
    graph = graph_of(first.matmul)
    weights = [linear.weight_array for linear in linears]
    weight = add_initializer(graph, f"{name}.weight", np.concatenate(weights, axis=1))
    bias = add_initializer(graph, f"{name}.bias", np.concatenate([linear.bias_array for linear in linears]))
    assert bias.shape is not None
    shape = None if first.output.shape is None else ir.Shape([*first.output.shape[:-1], bias.shape[0]])
    (product,) = insert_before(first.matmul, "MatMul", [first.input, weight], like=first.output, shapes=[shape])
    (merged,) = insert_before(first.matmul, "Add", [product, bias], like=first.output, shapes=[shape])
    widths = add_initializer(graph, f"{name}.widths", np.array([array.shape[1] for array in weights]))
    parts = insert_before(
        first.matmul, "Split", [merged, widths], like=[linear.output for linear in linears], attributes={"axis": -1}
    )
    for linear, part in zip(linears, parts, strict=True):
        linear.output.replace_all_uses_with(part)
