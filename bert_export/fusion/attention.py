"""Attention on [B, S, H]: the head split and merge move inside the operator.

torch captures attention on [B, A, S, D] with a Reshape and a Transpose on each side of it. The ONNX operator also takes
[B, S, H] with the number of heads as an attribute, which saves the copies (measured in bench/results/fusions.json by
`python -m bert_bench.experiments.fusions`).
"""

import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, insert_before, producer, sole_consumer

__all__ = ["fuse_attention"]

_SPLIT_HEADS = (0, 2, 1, 3)


def fuse_attention(node: ir.Node) -> None:
    """Rewrites one Attention node and its surroundings; raises `NoMatch` where they are not as torch captures them."""
    query, key, value = (_unsplit(each) for each in node.inputs[:3])
    heads, merged = _num_heads(node), _merged(node.outputs[0])
    extras = {
        name: node.attributes[name].value for name in ("scale", "softcap", "is_causal") if name in node.attributes
    }
    (output,) = insert_before(
        node,
        "Attention",
        [query, key, value, *node.inputs[3:]],
        like=merged,
        attributes={"q_num_heads": heads, "kv_num_heads": heads, **extras},
    )
    merged.replace_all_uses_with(output)


def _unsplit(value: ir.Value | None) -> ir.Value:
    """The [B, S, H] value behind one that was split into heads."""
    transpose = producer(value, "Transpose")
    _require_permutation(transpose)
    source = producer(transpose.inputs[0], "Reshape").inputs[0]
    if source is None or source.shape is None or len(source.shape) != 3:
        raise NoMatch(f"expected heads to be split from three axes, found {source.shape if source else None}")
    return source


def _merged(value: ir.Value) -> ir.Value:
    """The [B, S, H] value that the heads of `value` are merged into."""
    transpose = sole_consumer(value, "Transpose")
    _require_permutation(transpose)
    merged = sole_consumer(transpose.outputs[0], "Reshape").outputs[0]
    if merged.shape is None or len(merged.shape) != 3:
        raise NoMatch(f"expected heads to be merged into three axes, found {merged.shape}")
    return merged


def _require_permutation(transpose: ir.Node) -> None:
    found = tuple(transpose.attributes["perm"].as_ints())
    if found != _SPLIT_HEADS:
        raise NoMatch(f"expected the permutation {_SPLIT_HEADS} at {transpose.name}, found {found}")


def _num_heads(node: ir.Node) -> int:
    """The number of heads from the static second axis of the query [B, A, S, D]."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
        raise NoMatch(f"expected a query [B, heads, S, D] with a known number of heads, found {shape}")
    return shape[1]
