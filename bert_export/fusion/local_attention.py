"""Local attention: each query reads the keys within a window of tokens around it (arXiv:2004.05150, section 3.1).

torch captures it as attention with a mask [B, 1, S, S], which the fused graph keeps while it is calibrated and
quantized. For the CPU it becomes a call of `LocalAttention` (`bert_export.kernel_functions`), in which no tensor of
queries × keys exists.
"""

import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, constant, operators, producer

__all__ = ["attention_window", "find_local_attention"]


def find_local_attention(graph: ir.Model) -> list[ir.Node]:
    """Return the Attention nodes whose mask has a window."""
    return [node for node in operators(graph, "Attention") if attention_window(node) is not None]


def attention_window(attention: ir.Node) -> int | None:
    """Return the largest distance from a query to its keys; `None` if all keys are read."""
    mask = attention.inputs[3] if len(attention.inputs) > 3 else None
    node = mask.producer() if mask is not None else None
    if node is not None and node.op_type == "Slice":  # for the first query alone
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "And":
        return None
    try:
        near = producer(node.inputs[1], "LessOrEqual")
        producer(near.inputs[0], "Abs")
        return int(constant(near.inputs[1]))
    except NoMatch:
        return None
