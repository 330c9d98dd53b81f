"""The last layer for the first row alone, where a head reads nothing else.

A head that starts from the first token takes row 0 of the last hidden state, after every row has been computed. Every
operator between the last layer's keys and values and that selection works on each row by itself, so row 0 may be
selected before them: query, attention output and feed-forward then run on one row per sequence. The result is the same
number for number.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, add_initializer, insert_before

__all__ = ["fuse_first_token_only"]

_ROWS, _QUERIES = 1, 2
"""The axis of rows in a hidden state [B, S, H], and of queries in a mask [B, 1, S, S]."""


def fuse_first_token_only(model: ir.Model) -> None:
    """Moves the selection of row 0 up to the last layer's input; raises `NoMatch` where it cannot."""
    selection = _selection(model)
    nodes = _nodes_of_one_row(model, selection)
    if not any(node.op_type == "Attention" for node in nodes):
        raise NoMatch(f"the selection of the first row stops after {len(nodes)} nodes, before any attention")
    graph = model.graph
    start, end = (
        add_initializer(graph, f"first_row.{n}", np.array([i], dtype=np.int64)) for n, i in (("start", 0), ("end", 1))
    )
    axes = {axis: add_initializer(graph, f"first_row.axis_{axis}", np.array([axis])) for axis in (_ROWS, _QUERIES)}
    sliced: dict[ir.Value, ir.Value] = {}
    for node in graph:
        if node not in nodes:
            continue
        for index, axis in _row_inputs(node):
            source = node.inputs[index]
            assert source is not None
            if source.producer() in nodes:
                continue
            if source not in sliced:
                (sliced[source],) = insert_before(
                    node, "Slice", [source, start, end, axes[axis]], like=source, shapes=[_one_at(source.shape, axis)]
                )
            node.replace_input_with(index, sliced[source])
        node.outputs[0].shape = _one_at(node.outputs[0].shape, _ROWS)


def _selection(model: ir.Model) -> ir.Node:
    """The Gather of row 0 from a hidden state [B, S, H]."""
    for node in reversed(model.graph):
        if node.op_type == "Gather" and node.inputs[0] is not None and node.inputs[0].shape is not None:
            index = node.inputs[1].const_value if node.inputs[1] is not None else None
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            if len(node.inputs[0].shape) == 3 and axis == _ROWS and index is not None and not index.numpy().any():
                return node
    raise NoMatch("expected the head to gather row 0 of the last hidden state, found no such node")


def _nodes_of_one_row(model: ir.Model, selection: ir.Node) -> set[ir.Node]:
    """Nodes that work row by row and whose output is needed at row 0 alone: all of its readers are such nodes."""
    nodes: set[ir.Node] = set()
    for node in reversed(model.graph):
        output = node.outputs[0]
        if output.is_graph_output() or not _row_inputs(node):
            continue
        if all(
            (reader is selection and index == 0) or (reader in nodes and (index, _ROWS) in _row_inputs(reader))
            for reader, index in output.uses()
        ):
            nodes.add(node)
    return nodes


def _row_inputs(node: ir.Node) -> list[tuple[int, int]]:
    """The inputs of a row-wise operator that carry rows, each with its axis of rows; empty for any other operator."""
    if node.op_type == "Attention" and node.inputs[0] is not None and len(node.inputs[0].shape or ()) == 3:
        masked = len(node.inputs) > 3 and node.inputs[3] is not None
        return [(0, _ROWS), (3, _QUERIES)] if masked else [(0, _ROWS)]
    if node.op_type not in ("Add", "Gelu", "Relu", "Tanh", "Mul", "MatMul", "LayerNormalization"):
        return []
    if node.op_type == "MatMul" and (node.inputs[1] is None or node.inputs[1].const_value is None):
        return []  # a product of two activations mixes rows
    if node.op_type == "LayerNormalization" and node.attributes["axis"].as_int() not in (-1, 2):
        return []
    values = [(i, value) for i, value in enumerate(node.inputs) if value is not None and value.const_value is None]
    if any(value.shape is None or len(value.shape) != 3 for _, value in values):
        return []
    return [(i, _ROWS) for i, _ in values]


def _one_at(shape: ir.Shape | None, axis: int) -> ir.Shape | None:
    """`shape` with a single entry at `axis`."""
    return None if shape is None else ir.Shape([1 if i == axis else size for i, size in enumerate(shape)])
