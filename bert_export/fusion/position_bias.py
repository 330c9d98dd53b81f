"""Fold the table of relative positions: attention's bias by distance becomes one constant, read in part.

torch captures two lookups per batch: the bucket of each distance, and the biases of each bucket. Both tables are
constants. The fused graph has their product, [A, 2M - 1] for A heads and sequences of up to M tokens, and expands it to
scores [1, A, S, S] once per batch, for all layers. With native kernels it is not expanded at all, see
`bert_export.kernel_functions`.
"""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    NoMatch,
    add_initializer,
    constant,
    graph_of,
    insert_before,
    operators,
    producer,
    scope,
)

__all__ = ["PositionBias", "fold_position_bias", "narrow_to_first_query", "position_bias"]

_SCOPE = "encoder.position_bias"
"""The PyTorch module that the operators come from."""


class PositionBias(NamedTuple):
    """Sources of an additive mask [B, A, S, S]."""

    mask: ir.Value
    """bool [B, 1, S, S], True where a query may attend to a key."""

    by_distance: ir.Value
    """Bias of each head for a key that is 1 - S to S - 1 tokens after its query, float [A, 2S - 1]."""

    masked_score: ir.Value
    """Score of masked keys, a constant."""


def fold_position_bias(graph: ir.Model) -> None:
    """Replace the lookups of buckets and of their biases by a slice of one constant, in place.

    Raises:
        NoMatch: the operators are not those that torch captures.
    """
    lookups = [node for node in operators(graph, "Gather") if scope(node) == f"{_SCOPE}.table"]
    if len(lookups) != 1:
        raise NoMatch(f"expected one lookup in {_SCOPE}.table, found {len(lookups)}")
    (lookup,) = lookups
    table, part = constant(lookup.inputs[0]), producer(lookup.inputs[1], "Slice")
    consumers = lookup.outputs[0].consumers()
    if [node.op_type for node in consumers] != ["Transpose"]:
        raise NoMatch(f"expected the biases to be transposed, found {[node.op_type for node in consumers]}")
    by_distance = np.ascontiguousarray(table[constant(part.inputs[0])].T)
    folded = add_initializer(graph.graph, f"{_SCOPE}.by_distance", by_distance)
    axis = add_initializer(graph.graph, f"{_SCOPE}.axis", np.array([1], dtype=np.int64))
    (output,) = insert_before(lookup, "Slice", [folded, *part.inputs[1:3], axis], like=consumers[0].outputs[0])
    consumers[0].outputs[0].replace_all_uses_with(output)


def position_bias(mask: ir.Value | None) -> PositionBias:
    """Return what an additive mask of attention was made from.

    Raises:
        NoMatch: it is no mask that `fold_position_bias` has seen.
    """
    where = producer(mask, "Where")
    condition, expanded, masked_score = where.inputs
    gather = producer(producer(expanded, "Reshape").inputs[0], "Gather")
    by_distance = gather.inputs[0]
    producer(by_distance, "Slice")
    constant(masked_score)
    assert condition is not None
    assert by_distance is not None
    assert masked_score is not None
    return PositionBias(condition, by_distance, masked_score)


def narrow_to_first_query(attention: ir.Node) -> None:
    """Compute the additive mask of attention with a single query, the first, for that query alone, in place.

    Raises:
        NoMatch: its mask is not a slice of a mask for all queries.
    """
    selection = producer(attention.inputs[3], "Slice")
    bias = position_bias(selection.inputs[0])
    graph, like = graph_of(attention), selection.outputs[0]
    heads = constant(producer(bias.by_distance, "Slice").inputs[0]).shape[0]

    def add(op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        return insert_before(selection, op_type, inputs, like=like, shapes=[None], attributes=attributes)[0]

    def integers(name: str, *numbers: int) -> ir.Value:
        return add_initializer(graph, f"{_SCOPE}.{name}", np.array(numbers, dtype=np.int64))

    axis, end = integers("axis", 1), integers("end", np.iinfo(np.int64).max)
    tokens = add("Shape", bias.mask, start=3)
    start = add("Neg", tokens)
    for value in (tokens, start):
        value.type = ir.TensorType(ir.DataType.INT64)
    keys = add("Slice", bias.by_distance, start, end, axis)  # the keys at or after the first query
    by_key = add("Reshape", keys, integers("by_key", 1, heads, 1, -1))
    mask = add("Slice", bias.mask, *selection.inputs[1:])
    mask.type = bias.mask.type
    (narrow,) = insert_before(selection, "Where", [mask, by_key, bias.masked_score], like=like)
    like.replace_all_uses_with(narrow)
