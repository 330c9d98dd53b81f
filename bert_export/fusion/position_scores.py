"""Replace the operators that torch captures for disentangled attention's position scores by one function.

The projections of relative positions are constants already, see `fold_position_projections`.
"""

import onnx_ir as ir

from bert_export.onnx_graph import constant, insert_before, producer
from bert_export.position_functions import POSITION_SCORES
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["fuse_position_scores", "position_scores"]


_SHIFT = ("Slice", "Reshape", "Slice", "Reshape")
"""Operators that shift rows of products by distance, last one first."""


def fuse_position_scores(attention: ir.Node) -> None:
    """Let the additive mask of an Attention on [B, S, H] come from a call of `POSITION_SCORES`.

    Raises:
        NoMatch: its mask is not computed by the operators that torch captures for a `PositionScores` module whose
            projections are constants.
    """
    where = producer(attention.inputs[3] if len(attention.inputs) > 3 else None, "Where")
    by_query, by_key = producer(where.inputs[1], "Add").inputs
    keys, key_indices = _tables(by_query)
    queries, query_indices = _tables(producer(by_key, "Transpose").inputs[0])
    (scores,) = insert_before(
        attention,
        POSITION_SCORES.name,
        [*attention.inputs[:2], where.inputs[0], keys, queries, key_indices, query_indices],
        like=where.outputs[0],
        attributes={"num_heads": attention.attributes["q_num_heads"].as_int()},
        domain=KERNEL_DOMAIN,
    )
    attention.replace_input_with(3, scores)


def _tables(scores: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the projected positions, and the index of each distance, that `scores` were multiplied by."""
    for op_type in _SHIFT:
        scores = producer(scores, op_type).inputs[0]
    columns = producer(producer(scores, "MatMul").inputs[1], "Transpose")
    gather = producer(columns.inputs[0], "Gather")
    indices = producer(producer(gather.inputs[1], "Reshape").inputs[0], "Slice")
    tables = gather.inputs[0], indices.inputs[0]
    for table in tables:
        constant(table)
    return tables


def position_scores(mask: ir.Value | None) -> ir.Node:
    """Return the call of `POSITION_SCORES` that computes an additive mask of attention.

    Raises:
        NoMatch: there is none.
    """
    node = producer(mask, POSITION_SCORES.name)
    for value in node.inputs[3:]:
        constant(value)
    return node
