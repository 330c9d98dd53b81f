"""Insert token pruning into a fused graph: after the attention of some layers, tokens of low importance leave.

They leave before the projection of attention's output and the feed-forward block, so that these work on the tokens that
are left, like all later layers. The choice is a call of `KEEP_TOKENS`.
"""

from collections import deque
from typing import NamedTuple

import onnx_ir as ir

from bert_export.onnx_graph import (
    FusionCounts,
    NoMatch,
    as_linear,
    check_counts,
    graph_input,
    graph_of,
    insert_before,
    operators,
    producer,
    sole_consumer,
    tidy,
)
from bert_export.operator_attributes import attention_scale
from bert_export.pruning_function import KEEP_TOKENS
from bert_models.pruning_schedule import TokenPruning
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = [
    "KeptAxis",
    "before_pruning",
    "kept_axes",
    "kept_axis",
    "kept_percent",
    "key_mask",
    "prune_tokens",
    "pruned_is_full",
]

_AXIS = "sequence"
"""Name of the axis of positions in captured graphs."""


def kept_axis(percent: int) -> str:
    """Return the name of the axis of positions once that percentage of the tokens is left."""
    return f"{_AXIS} · {percent} %"


def kept_percent(axis: str) -> int:
    """Return the percentage of the tokens that are left on an axis that `kept_axis` named."""
    return int(axis.split()[-2])


def prune_tokens(graph: ir.Model, pruning: TokenPruning, fusions: FusionCounts) -> FusionCounts:
    """Prune tokens in a graph that `fuse` returned, in place, and return the counts with those of the steps.

    Raises:
        FusionError: a layer of the schedule is not one that can be pruned; gives the reason.
    """
    layers = operators(graph, "Attention")
    attention_mask = graph_input(graph.graph, "attention_mask")
    assert attention_mask is not None
    mask, lengths = _token_mask(graph, attention_mask)
    found, reasons = 0, []
    for layer, percent in pruning.steps:
        try:
            mask = _prune_after(layers[layer - 1], percent, mask, lengths)
            found += 1
        except (NoMatch, IndexError) as reason:
            reasons.append(f"token pruning after layer {layer}: {reason}")
    graph.functions[KEEP_TOKENS.identifier()] = KEEP_TOKENS
    graph.graph.opset_imports[KERNEL_DOMAIN] = 1
    tidy(graph)
    counts = check_counts({"token_pruning": found}, {"token_pruning": len(pruning.steps)}, reasons)
    return {**fusions, **counts}


def _token_mask(graph: ir.Model, attention_mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Insert whether a token is real, bool [B, S], and the number of real tokens, int64 [B]."""
    first = next(iter(graph.graph))
    bools, ints = (ir.Value(type=ir.TensorType(dtype)) for dtype in (ir.DataType.BOOL, ir.DataType.INT64))
    shape = attention_mask.shape
    assert shape is not None
    (mask,) = insert_before(
        first, "Cast", [attention_mask], like=bools, shapes=[shape], attributes={"to": ir.DataType.BOOL}
    )
    (numbers,) = insert_before(first, "Cast", [mask], like=ints, shapes=[shape], attributes={"to": ir.DataType.INT64})
    axis = ir.tensor([1], dtype=ir.DataType.INT64)
    (axes,) = insert_before(first, "Constant", [], like=ints, shapes=[ir.Shape([1])], attributes={"value": axis})
    (lengths,) = insert_before(
        first, "ReduceSum", [numbers, axes], like=ints, shapes=[ir.Shape([shape[0]])], attributes={"keepdims": 0}
    )
    return mask, lengths


def _prune_after(attention: ir.Node, percent: int, mask: ir.Value, lengths: ir.Value) -> ir.Value:
    """Let a percentage of the tokens stay after an Attention node; return which of these are real, bool [B, K]."""
    split = producer(attention.inputs[0], "Split")
    if [*split.outputs] != [*attention.inputs[:3]]:
        raise NoMatch("expected queries, keys and values of one projection")
    merged, old_mask, attended = split.inputs[0], attention.inputs[3], attention.outputs[0]
    hidden = as_linear(merged).input
    projection = sole_consumer(attended, "MatMul")
    residuals = [node for node in hidden.consumers() if node.op_type == "Add"]
    if len(residuals) != 1 or old_mask is None or attended.shape is None:
        raise NoMatch("expected masked attention, whose input is added to its output once")
    heads = attention.attributes["q_num_heads"].as_int()
    batch, axis, width = attended.shape[0], kept_axis(percent), attended.shape[2]
    bools, ints = (ir.Value(type=ir.TensorType(dtype)) for dtype in (ir.DataType.BOOL, ir.DataType.INT64))
    indices, kept_mask, new_mask, _ = insert_before(
        projection,
        KEEP_TOKENS.name,
        [merged, mask, lengths],
        like=[ints, bools, bools, bools],
        shapes=[
            ir.Shape([batch, axis, 1]), ir.Shape([batch, axis]), ir.Shape([batch, 1, axis, axis]), ir.Shape([])
        ],
        attributes={"num_heads": heads, "scale": attention_scale(attention), "percent": percent},
        domain=KERNEL_DOMAIN,
    )  # fmt: skip
    later = {node for node in _after(attention) if node is not projection}
    for node, index in list(old_mask.uses()):
        if node in later and node is not attention:
            node.replace_input_with(index, new_mask)
    shape = ir.Shape([batch, axis, width])
    taken = []
    for value, reader in ((attended, projection), (hidden, residuals[0])):
        (rows,) = insert_before(
            reader, "GatherND", [value, indices], like=value, shapes=[shape], attributes={"batch_dims": 1}
        )
        for index, source in enumerate(reader.inputs):
            if source is value:
                reader.replace_input_with(index, rows)
        taken.append(rows)
    _rename_axis([*taken, new_mask], axis)
    return kept_mask


def _after(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of the graph after a node."""
    nodes = list(graph_of(node))
    return nodes[nodes.index(node) + 1 :]


def _rename_axis(values: list[ir.Value], axis: str) -> None:
    """Name the axis of positions of everything that is computed from values."""
    waiting, seen = deque(node for value in values for node in value.consumers()), set[ir.Node]()
    while waiting:
        node = waiting.popleft()
        if node in seen:
            continue
        seen.add(node)
        for output in node.outputs:
            if output.shape is not None:
                sizes = [size if isinstance(size, int) else str(size.value) for size in output.shape]
                output.shape = ir.Shape([axis if str(size).startswith(_AXIS) else size for size in sizes])
            waiting.extend(output.consumers())


def pruned_is_full(mask: ir.Value | None) -> ir.Value | None:
    """Return the flag that a mask of attention among tokens that are left is full; `None` for any other mask."""
    call = mask.producer() if mask is not None else None
    return call.outputs[3] if call is not None and call.op_type == KEEP_TOKENS.name else None


def key_mask(mask: ir.Value | None) -> ir.Value | None:
    """Return the mask of keys [B, K], bool or int64, that a mask [B, 1, K, K] expands; any other mask as it is."""
    try:
        if mask is not None and (call := mask.producer()) is not None and call.op_type == KEEP_TOKENS.name:
            return call.outputs[1]
        cast = producer(producer(producer(mask, "Expand").inputs[0], "Unsqueeze").inputs[0], "Cast")
    except NoMatch:
        return mask
    keys = cast.inputs[0]
    return keys if keys is not None and keys.is_graph_input() else mask


def before_pruning(value: ir.Value) -> ir.Value:
    """Return the value that holds all tokens, for one that holds those that are left."""
    node = value.producer()
    if node is None or node.op_type != "GatherND" or node.inputs[0] is None:
        return value
    return node.inputs[0]


class KeptAxis(NamedTuple):
    """The axis of the tokens that are left after a step."""

    percent: int
    mask: ir.Value
    """Whether they are real, bool [B, K]."""


def kept_axes(graph: ir.Model) -> dict[str, KeptAxis]:
    """Return the axes of the tokens that are left, by their names in shapes."""
    calls = ((call, call.attributes["percent"].as_int()) for call in operators(graph, KEEP_TOKENS.name))
    return {kept_axis(percent): KeptAxis(percent, call.outputs[1]) for call, percent in calls}
