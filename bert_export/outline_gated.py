"""Match the activation of a gated feed-forward block's gate: GELU, or SiLU as torch captures it."""

import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, producer, sole_consumer
from bert_export.operator_attributes import gelu_approximation

__all__ = ["activated_gate"]


def activated_gate(activated: ir.Value | None) -> tuple[ir.Value | None, str]:
    """Return what `activated` is the GELU or SiLU of, and the activation's name.

    Raises:
        NoMatch: it is of neither, or something else reads the gate or its activation.
    """
    is_gelu = activated is not None and (found := activated.producer()) is not None and found.op_type == "Gelu"
    node = producer(activated, "Gelu" if is_gelu else "Mul")
    sole_consumer(node.outputs[0], "Mul")
    gate = node.inputs[0]
    if is_gelu:
        if gelu_approximation(node) != "none":
            raise NoMatch("expected exact GELU")
        name, uses = "Gelu", 1
    else:
        sigmoid = producer(node.inputs[1], "Sigmoid")
        sole_consumer(sigmoid.outputs[0], "Mul")
        if sigmoid.inputs[0] is not gate:
            raise NoMatch("expected SiLU")
        name, uses = "Silu", 2
    if gate is None or len(gate.uses()) != uses:
        raise NoMatch("expected a gate that nothing else reads")
    return gate, name
