"""Read the attributes of ONNX's Attention and Gelu, with the defaults of those that are left out."""

import math

import onnx_ir as ir

from bert_export.onnx_graph import NoMatch

__all__ = ["attention_scale", "check_heads_and_scale", "gelu_approximation", "query_width"]

_HEADS_AND_SCALE = {"q_num_heads", "kv_num_heads", "scale"}


def check_heads_and_scale(attention: ir.Node) -> None:
    """Check that Attention has heads of a fixed width, as many of keys as of queries, and nothing more but a scale.

    Raises:
        NoMatch: it does not.
    """
    attributes = attention.attributes
    unknown = {key: item.value for key, item in attributes.items() if key not in _HEADS_AND_SCALE and item.value}
    if unknown:
        raise NoMatch(f"expected heads and a scale alone, found {unknown}")
    heads, kv_heads = (attributes[f"{side}_num_heads"].as_int() for side in ("q", "kv"))
    if heads != kv_heads:
        raise NoMatch(f"expected as many heads of keys as of queries, found {kv_heads} and {heads}")
    query_width(attention)


def attention_scale(attention: ir.Node) -> float:
    """Return the factor of an Attention's scores, 1 / √(channels of a head) by default.

    Raises:
        NoMatch: there is no scale, and the width of the queries is not fixed.
    """
    if "scale" in attention.attributes:
        return attention.attributes["scale"].as_float()
    return 1 / math.sqrt(query_width(attention) // attention.attributes["q_num_heads"].as_int())


def query_width(attention: ir.Node) -> int:
    """Return the channels of the queries [B, S, H] of an Attention, H.

    Raises:
        NoMatch: their number is not fixed.
    """
    query = attention.inputs[0]
    width = query.shape[-1] if query is not None and query.shape is not None else None
    if not isinstance(width, int):
        raise NoMatch(f"expected queries of a fixed width, found {width}")
    return width


def gelu_approximation(gelu: ir.Node) -> str:
    """Return how a Gelu approximates: `none` if it is exact, or `tanh`."""
    approximate = gelu.attributes.get("approximate")
    return "none" if approximate is None else approximate.as_string()
