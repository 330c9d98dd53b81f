"""Build the inputs of rotary and local attention: a mask of keys instead of one of queries × keys, and rotations."""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bert_export.errors import FusionError
from bert_export.fusion.local_attention import attention_window, find_local_attention
from bert_export.onnx_graph import NoMatch, add_initializer, graph_input, insert_before, producer, scope

__all__ = ["RotaryCall", "check_local_attention", "rotary_call"]

_KEY_MASK = "attention.key_mask"
"""Name of the mask of keys, bool [B, S]."""


class RotaryCall(NamedTuple):
    """Inputs of attention with rotated queries and keys besides the merged projections."""

    inputs: list[ir.Value | None]
    """Mask int64 [B, S], nothing, cosines and sines [max_tokens, D / 2]."""
    window: int | None
    """Largest distance from a query to a key, if there is one."""


def rotary_call(graph: ir.Model, attention: ir.Node) -> RotaryCall:
    """Return the inputs of a call; attention with a single query gets a mask for that query instead.

    Raises:
        NoMatch: queries and keys are not rotated, or there is a single query.
    """
    rotary = producer(attention.inputs[0], "RotaryEmbedding")
    if [*producer(attention.inputs[1], "RotaryEmbedding").inputs[1:]] != [*rotary.inputs[1:]]:
        if attention.inputs[0] is not None and attention.inputs[0].shape and attention.inputs[0].shape[1] == 1:
            _mask_first_query(graph, attention)
        raise NoMatch("expected queries and keys to be rotated alike")
    mask = graph_input(graph.graph, "attention_mask")
    if mask is None:
        raise NoMatch("expected a mask")
    cos, sin = rotary.inputs[1:3]
    assert cos is not None
    assert sin is not None
    return RotaryCall([mask, None, cos, sin], attention_window(attention))


def check_local_attention(graph: ir.Model) -> None:
    """Check that no local attention has a mask of queries × keys.

    Raises:
        FusionError: there is one.
    """
    dense = [scope(node) for node in find_local_attention(graph)]
    if dense:
        raise FusionError(f"local attention could not be computed in blocks at {', '.join(dense)}")


def _key_mask(graph: ir.Model) -> ir.Value:
    """Return whether each token is a key, bool [B, S]; inserted before all other nodes the first time."""
    for node in graph.graph:
        if node.outputs[0].name == _KEY_MASK:
            return node.outputs[0]
    mask = graph_input(graph.graph, "attention_mask")
    assert mask is not None
    first = next(iter(graph.graph))
    (keys,) = insert_before(first, "Cast", [mask], like=mask, attributes={"to": ir.DataType.BOOL})
    keys.type, keys.name = ir.TensorType(ir.DataType.BOOL), _KEY_MASK
    return keys


def _mask_first_query(graph: ir.Model, attention: ir.Node) -> None:
    """Give attention whose only query is the first token a mask [B, 1, 1, S] that is made for it."""
    keys, window = _key_mask(graph), attention_window(attention)
    assert keys.shape is not None

    def add(op_type: str, *inputs: ir.Value, dtype: ir.DataType = ir.DataType.BOOL, **attributes: object) -> ir.Value:
        (output,) = insert_before(attention, op_type, inputs, like=keys, shapes=[None], attributes=attributes)
        output.type = ir.TensorType(dtype)
        return output

    def integers(numbers: int | list[int]) -> ir.Value:
        return add_initializer(graph.graph, "first_query.numbers", np.array(numbers, dtype=np.int64))

    if window is not None:
        int64 = ir.DataType.INT64
        tokens = add("Squeeze", add("Shape", keys, dtype=int64, start=1), dtype=int64)
        positions = add("Range", integers(0), tokens, integers(1), dtype=int64)
        near = add("Less", positions, integers(window + 1))
        keys = add("And", keys, near)
    attention.replace_input_with(3, add("Unsqueeze", keys, integers([1, 2])))
