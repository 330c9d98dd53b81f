"""Rotary position embeddings: one RotaryEmbedding on [B, S, H] instead of eight operators on each half of the heads.

torch captures `cat(a · cos - b · sin, b · cos + a · sin)` for the halves a and b of every head. The ONNX operator reads
the table of cosines and sines, which is a constant of the graph, at the positions of the sequence, which all layers
share.
"""

from typing import NamedTuple

import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, graph_input, graph_of, insert_before, producer

__all__ = ["RotatedHeads", "insert_rotary", "match_rotary", "rotary_source"]

_POSITIONS = "rotary.positions"
"""Name of the positions int64 [B, S]."""


class RotatedHeads(NamedTuple):
    """Inputs of a rotation of heads as torch captured it."""

    heads: ir.Value
    """Before the rotation, float [B, A, S, D]."""
    cos: ir.Value
    """Float [S, D / 2], or a constant with more rows."""
    sin: ir.Value


def match_rotary(value: ir.Value | None) -> RotatedHeads | None:
    """Return what `value` [B, A, S, D] was rotated from; `None` if it is not rotated.

    Raises:
        NoMatch: it is concatenated from something else.
    """
    concat = value.producer() if value is not None else None
    if concat is None or concat.op_type != "Concat":
        return None
    difference, total = producer(concat.inputs[0], "Sub"), producer(concat.inputs[1], "Add")
    (first, cos), (second, sin) = (_factors(operand) for operand in difference.inputs)
    (second_again, cos_again), (first_again, sin_again) = (_factors(operand) for operand in total.inputs)
    split = producer(first, "Split")
    if [*split.outputs] != [first, second] or (second_again, first_again) != (second, first):
        raise NoMatch("expected the rotation of the two halves of each head")
    if (cos_again, sin_again) != (cos, sin) or split.inputs[0] is None:
        raise NoMatch("expected one rotation for both halves of each head")
    return RotatedHeads(split.inputs[0], _table(cos), _table(sin))


def _factors(product: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    first, second = producer(product, "Mul").inputs
    return first, second


def _table(rows: ir.Value | None) -> ir.Value:
    """Return the constant whose first rows these are, or the rows themselves if they are computed."""
    if rows is None or rows.shape is None or len(rows.shape) != 2:
        raise NoMatch(f"expected rotations [S, D / 2], found {rows.shape if rows is not None else None}")
    node = rows.producer()
    table = node.inputs[0] if node is not None and node.op_type == "Slice" else None
    return rows if table is None or table.const_value is None else table


def insert_rotary(node: ir.Node, source: ir.Value, rotated: RotatedHeads, num_heads: int) -> ir.Value:
    """Insert the rotation of `source` [B, S, H] before `node`, and return its output."""
    inputs = [source, rotated.cos, rotated.sin, _positions(node)]
    (output,) = insert_before(node, "RotaryEmbedding", inputs, like=source, attributes={"num_heads": num_heads})
    return output


def rotary_source(value: ir.Value | None) -> ir.Value | None:
    """Return what `value` [B, S, H] is rotated from, or itself if it is not rotated."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == "RotaryEmbedding" else value


def _positions(node: ir.Node) -> ir.Value:
    """Return the positions of all tokens, int64 [B, S]; they are inserted before all other nodes the first time."""
    graph = graph_of(node)
    for candidate in graph:
        if candidate.outputs[0].name == _POSITIONS:
            return candidate.outputs[0]
    ids = graph_input(graph, "input_ids")
    assert ids is not None
    first = next(iter(graph))

    def add(op_type: str, *inputs: ir.Value, shape: list[object], **attributes: object) -> ir.Value:
        shapes = [ir.Shape(shape)]  # type: ignore[arg-type]
        return insert_before(first, op_type, inputs, like=ids, shapes=shapes, attributes=attributes)[0]

    shape = add("Shape", ids, shape=[2])
    tokens = add("Squeeze", add("Shape", ids, shape=[1], start=1), shape=[])
    zero, one = (add("Constant", shape=[], value_int=number) for number in (0, 1))
    assert ids.shape is not None
    positions = add("Expand", add("Range", zero, tokens, one, shape=[ids.shape[1]]), shape, shape=[*ids.shape])
    positions.name = _POSITIONS
    return positions
