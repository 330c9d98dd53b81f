"""One projection for query, key and value: their weights side by side, then a split.

One large matrix product reads its input once and keeps the cores busier than three small ones; with dynamic
quantization, the input is also quantized once and not three times.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import Linear, NoMatch, add_initializer, as_linear, insert_before, scope

__all__ = ["merge_qkv"]


def merge_qkv(attention: ir.Node) -> str:
    """Merges the projections that share an input; says which: `qkv_projection` or `kv_projection`.

    Where the query is computed for the first row alone, only key and value share theirs. Raises `NoMatch` otherwise.
    """
    query, key, value = (as_linear(each) for each in attention.inputs[:3])
    if key.input is not value.input:
        raise NoMatch(f"key and value of {scope(attention)} are projected from different values")
    together = [query, key, value] if query.input is key.input else [key, value]
    _merge(together, attention)
    return "qkv_projection" if len(together) == 3 else "kv_projection"


def _merge(linears: list[Linear], attention: ir.Node) -> None:
    """Replaces projections of one input by one projection and a Split, placed before the earliest of them."""
    graph, first = attention.graph, linears[0]
    assert isinstance(graph, ir.Graph)
    name = f"{scope(attention)}.{'qkv' if len(linears) == 3 else 'kv'}"
    weight = add_initializer(graph, f"{name}.weight", np.concatenate([each.weight_array for each in linears], axis=1))
    bias = add_initializer(graph, f"{name}.bias", np.concatenate([each.bias_array for each in linears]))
    rows = first.output.shape
    shape = ir.Shape([*rows[:-1], bias.shape[0]]) if rows is not None and bias.shape is not None else None
    (product,) = insert_before(first.matmul, "MatMul", [first.input, weight], like=first.output, shapes=[shape])
    (merged,) = insert_before(first.matmul, "Add", [product, bias], like=first.output, shapes=[shape])
    widths = add_initializer(graph, f"{name}.widths", np.array([each.weight_array.shape[1] for each in linears]))
    parts = insert_before(
        first.matmul, "Split", [merged, widths], like=[each.output for each in linears], attributes={"axis": -1}
    )
    for linear, part in zip(linears, parts, strict=True):
        linear.output.replace_all_uses_with(part)
