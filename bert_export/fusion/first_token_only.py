"""Compute the last layer for the first token alone, where the head reads nothing else.

A head on the first token gathers position 0 of the last hidden state, after all positions were computed. Every operator
between the last layer's keys and values and that Gather works on each position by itself, so position 0 can be selected
before them: query, attention output and feed-forward then run on one token per sequence. The outputs are bit for bit
the same.

Bundles count this fusion under the key `first_row`.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, add_initializer, insert_before, operators, tidy
from bert_export.position_functions import POSITION_SCORES

__all__ = ["fuse_first_token_only", "selects_first_token", "unfuse_first_token_only"]

_HIDDEN_AXIS, _MASK_AXIS = 1, 2
"""The axis of positions in a hidden state [B, S, H], and of query positions in a mask [B, 1, S, S] or in scores."""

_POSITIONWISE = ("Add", "Gelu", "Relu", "Sigmoid", "Tanh", "Mul", "MatMul", "LayerNormalization")
"""Operators that can work on each position by itself; Attention does for its queries."""

_INSERTED_MARK = "bert_export.first_token_only"
"""Metadata key of the Slice nodes that `fuse_first_token_only` inserts."""


def fuse_first_token_only(graph: ir.Model) -> None:
    """Move the selection of position 0 up to the last layer's input, in place.

    Raises:
        NoMatch: the head does not gather position 0, or the selection cannot move past the last attention.
    """
    nodes = _nodes_to_narrow(graph, _first_token_gather(graph))
    if not any(node.op_type == "Attention" for node in nodes):
        raise NoMatch(f"the selection of the first token stops after {len(nodes)} nodes, before any attention")
    start, end = (
        add_initializer(graph.graph, f"first_row.{name}", np.array([index], dtype=np.int64))
        for name, index in (("start", 0), ("end", 1))
    )
    axes = {
        axis: add_initializer(graph.graph, f"first_row.axis_{axis}", np.array([axis]))
        for axis in (_HIDDEN_AXIS, _MASK_AXIS)
    }
    sliced: dict[ir.Value, ir.Value] = {}
    for node in graph.graph:
        if node not in nodes:
            continue
        for index, axis in _position_inputs(node):
            source = node.inputs[index]
            assert source is not None
            if source.producer() in nodes:
                continue
            if source not in sliced:
                shape = _with_size_one(source.shape, axis)
                (sliced[source],) = insert_before(
                    node, "Slice", [source, start, end, axes[axis]], like=source, shapes=[shape]
                )
                _mark_inserted(sliced[source])
            node.replace_input_with(index, sliced[source])
        axis = _MASK_AXIS if node.op_type == POSITION_SCORES.name else _HIDDEN_AXIS
        node.outputs[0].shape = _with_size_one(node.outputs[0].shape, axis)


def unfuse_first_token_only(graph: ir.Model) -> None:
    """Compute the last layer for all tokens again, in place, where `fuse_first_token_only` has changed the graph."""
    slices = [node for node in operators(graph, "Slice") if _INSERTED_MARK in node.metadata_props]
    for node in slices:
        source = node.inputs[0]
        assert source is not None
        node.outputs[0].replace_all_uses_with(source)
    if slices:
        for node in graph.graph:  # shapes after the slices state one token
            for value in node.outputs:
                value.shape = value.shape if value.is_graph_output() else None
        tidy(graph)


def selects_first_token(node: ir.Node) -> bool:
    """Return whether a node is a Gather or a Slice of position 0 of a hidden state [B, S, H]."""
    source, *selection = node.inputs
    if source is None or source.shape is None or len(source.shape) != 3:
        return False
    arrays = [value.const_value.numpy().ravel().tolist() for value in selection if value and value.const_value]
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) == _HIDDEN_AXIS and arrays == [[0]]
    return node.op_type == "Slice" and arrays == [[0], [1], [_HIDDEN_AXIS]]


def _mark_inserted(sliced: ir.Value) -> None:
    node = sliced.producer()
    assert node is not None
    node.metadata_props[_INSERTED_MARK] = ""


def _first_token_gather(graph: ir.Model) -> ir.Node:
    """Find the Gather of position 0 from a hidden state [B, S, H]."""
    for node in reversed(graph.graph):
        if node.op_type == "Gather" and selects_first_token(node):
            return node
    raise NoMatch("expected the head to gather position 0 of the last hidden state, found no such node")


def _nodes_to_narrow(graph: ir.Model, gather: ir.Node) -> set[ir.Node]:
    """Find the position-wise nodes whose output is read at position 0 alone, by `gather` or by other such nodes."""
    nodes: set[ir.Node] = set()
    for node in reversed(graph.graph):
        output = node.outputs[0]
        if output.is_graph_output() or not _position_inputs(node):
            continue
        if all(
            (reader is gather and index == 0) or (reader in nodes and index in dict(_position_inputs(reader)))
            for reader, index in output.uses()
        ):
            nodes.add(node)
    return nodes


def _position_inputs(node: ir.Node) -> list[tuple[int, int]]:
    """List the inputs of a position-wise node that have positions, with their axis; empty for other nodes."""
    if node.op_type == "Attention" and node.inputs[0] is not None and len(node.inputs[0].shape or ()) == 3:
        masked = len(node.inputs) > 3 and node.inputs[3] is not None
        return [(0, _HIDDEN_AXIS), (3, _MASK_AXIS)] if masked else [(0, _HIDDEN_AXIS)]
    if node.op_type == POSITION_SCORES.name:
        return [(0, _HIDDEN_AXIS), (2, _MASK_AXIS)]
    if node.op_type == "RotaryEmbedding":
        return [(0, _HIDDEN_AXIS), (3, _HIDDEN_AXIS)]  # the positions have it, too
    if node.op_type not in _POSITIONWISE:
        return []
    if node.op_type == "MatMul" and (node.inputs[1] is None or node.inputs[1].const_value is None):
        return []  # a matmul of two activations mixes positions
    if node.op_type == "LayerNormalization" and node.attributes["axis"].as_int() not in (-1, 2):
        return []
    values = [(i, value) for i, value in enumerate(node.inputs) if value is not None and value.const_value is None]
    if any(value.shape is None or len(value.shape) != 3 for _, value in values):
        return []
    return [(i, _HIDDEN_AXIS) for i, _ in values]


def _with_size_one(shape: ir.Shape | None, axis: int) -> ir.Shape | None:
    """Return `shape` with size 1 at `axis`."""
    return None if shape is None else ir.Shape([1 if i == axis else size for i, size in enumerate(shape)])
