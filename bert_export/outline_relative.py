"""Find what calls of attention with relative positions read, see `bert_export.outline_kernels`."""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from bert_export.fusion.position_bias import position_bias
from bert_export.fusion.position_scores import position_scores
from bert_export.onnx_graph import NoMatch

__all__ = ["RelativeCall", "relative_call"]


class RelativeCall(NamedTuple):
    """A call of attention with relative positions."""

    mask: ir.Value | None
    """bool [B, 1, S, S]"""
    tables: Sequence[ir.Value | None]
    """Inputs after the mask and whether it is full."""
    names: tuple[str, str]
    """The function in FP32 and in INT8."""


def relative_call(attention: ir.Node) -> RelativeCall:
    """Return the call that can replace an Attention node.

    Raises:
        NoMatch: its mask is made neither from a position bias nor from position scores.
    """
    mask = attention.inputs[3] if len(attention.inputs) > 3 else None
    try:
        bias = position_bias(mask)
        return RelativeCall(bias.mask, [bias.by_distance], ("RelativeAttention", "QuantizedRelativeAttention"))
    except NoMatch:
        inputs = position_scores(mask).inputs
        names = ("DisentangledAttention", "QuantizedDisentangledAttention")
        return RelativeCall(inputs[2], inputs[3:], names)
