"""Let Attention read and write [B, S, H]: splitting and merging the heads moves inside the operator.

torch captures attention on [B, A, S, D], with A heads of D channels, and a Reshape and a Transpose on each side of it.
The ONNX operator also takes [B, S, H] with the number of heads as an attribute, which saves the copies (measured by
`python -m bert_bench.experiments.fusions`, in bench/results/fusions.json).
"""

import onnx_ir as ir

from bert_export.fusion.rotary import insert_rotary, match_rotary
from bert_export.onnx_graph import NoMatch, insert_before, producer, sole_consumer

__all__ = ["fuse_attention"]

_HEADS_PERMUTATION = (0, 2, 1, 3)


def fuse_attention(node: ir.Node) -> None:
    """Replace an Attention node on [B, A, S, D], with the Reshapes and Transposes around it, by one on [B, S, H].

    Queries and keys may be rotated by their position.

    Raises:
        NoMatch: the operators around it are not those that torch captures.
    """
    rotated = [match_rotary(value) for value in node.inputs[:2]]
    operands = [found.heads if found else value for found, value in zip([*rotated, None], node.inputs[:3], strict=True)]
    query, key, value = (_before_split(operand) for operand in operands)
    heads, merged = _num_heads(node), _after_merge(node.outputs[0])
    query, key = (
        source if found is None else insert_rotary(node, source, found, heads)
        for source, found in zip((query, key), rotated, strict=True)
    )
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


def _before_split(value: ir.Value | None) -> ir.Value:
    """Return the [B, S, H] value that `value` [B, A, S, D] was split from."""
    transpose = producer(value, "Transpose")
    _check_permutation(transpose)
    source = producer(transpose.inputs[0], "Reshape").inputs[0]
    if source is None or source.shape is None or len(source.shape) != 3:
        raise NoMatch(f"expected heads to be split from three axes, found {source.shape if source else None}")
    return source


def _after_merge(value: ir.Value) -> ir.Value:
    """Return the [B, S, H] value that the heads of `value` [B, A, S, D] are merged into."""
    transpose = sole_consumer(value, "Transpose")
    _check_permutation(transpose)
    merged = sole_consumer(transpose.outputs[0], "Reshape").outputs[0]
    if merged.shape is None or len(merged.shape) != 3:
        raise NoMatch(f"expected heads to be merged into three axes, found {merged.shape}")
    return merged


def _check_permutation(transpose: ir.Node) -> None:
    found = tuple(transpose.attributes["perm"].as_ints())
    if found != _HEADS_PERMUTATION:
        raise NoMatch(f"expected the permutation {_HEADS_PERMUTATION} at {transpose.name}, found {found}")


def _num_heads(node: ir.Node) -> int:
    """Return the number of heads, the static second axis of the query [B, A, S, D]."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
        raise NoMatch(f"expected a query [B, heads, S, D] with a known number of heads, found {shape}")
    return shape[1]
