"""Merge the projections gate and up of a gated feed-forward block into one matmul and a Split, gate first.

One large matmul reads its input once, as in `bert_export.fusion.merge_qkv`, and a native kernel multiplies its two
halves before they are stored.
"""

import onnx_ir as ir

from bert_export.fusion.merge_qkv import merge_linears
from bert_export.onnx_graph import linears, scope

__all__ = ["merge_gates"]


def merge_gates(graph: ir.Model, reasons: list[str]) -> int:
    """Merge gate and up of every feed-forward block, in place.

    Args:
        graph: the graph.
        reasons: gets a line for every gate without a projection beside it that reads the same value.

    Returns:
        The number of merged blocks.
    """
    merged = 0
    by_scope = {scope(linear.matmul): linear for linear in linears(graph)}
    gates = [name for name in by_scope if name.endswith(".feed_forward.gate")]
    for name in gates:
        block = name.removesuffix(".gate")
        gate, up = by_scope[name], by_scope.get(f"{block}.up")
        if up is None or up.input is not gate.input:
            reasons.append(f"gated_projection: expected gate and up of {block} to be projections of one value")
            continue
        merge_linears([gate, up], f"{block}.gate_up")
        merged += 1
    return merged
