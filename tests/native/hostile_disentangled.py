"""Hostile calls of attention with scores of relative positions: the fields of `HostileGraph`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["calls"]

Array = NDArray[Any]
Call = tuple[Any, ...]


def _disentangled(
    name: str, error: str | None, attributes: Mapping[str, Any] | None = None, **changes: Array | None
) -> Iterator[Call]:
    """Yield a call of each attention with positions; `changes` replace arguments, `attributes` those of one head."""
    values = {
        "qkv": np.ones((1, 4, 12), np.float32),
        "mask": np.ones((1, 1, 4, 4), np.bool_),
        "is_full": np.asarray(False),
        "position_keys": np.ones((1, 6, 4), np.float32),
        "position_queries": np.ones((1, 6, 4), np.float32),
        "key_indices": np.arange(8) % 6,
        "query_indices": np.arange(8) % 6,
    } | changes
    attributes = {"num_heads": 1, "scale": 0.5} | (attributes or {})
    for prefix in ("", "Bf16", "Quantized"):
        function = f"{prefix}DisentangledAttention"
        extra = {"y_scale": np.asarray(np.float32(0.1)), "y_zero_point": np.asarray(np.uint8(3))}
        extra = extra if prefix == "Quantized" else {}
        variable = ("qkv", "mask", "is_full")
        yield f"{function}, {name}", error, function, values | extra, variable, attributes, ["y"]


def calls() -> Iterator[Call]:
    """Yield calls of attention with scores of positions."""
    yield from _disentangled("as exported", None)
    yield from _disentangled("0 heads", "expected num_heads of at least 1", {"num_heads": 0})
    yield from _disentangled("2 heads", "expected positions as keys and as queries [num_heads", {"num_heads": 2})
    for shape in ((6, 4), (2, 6, 4), (1, 0, 4), (1, 6, 0), (0, 6, 4), (1, 1, 6, 4)):
        tables = {name: np.ones(shape, np.float32) for name in ("position_keys", "position_queries")}
        yield from _disentangled(f"positions {shape}", "expected positions as keys and as queries", **tables)
    other = np.ones((1, 5, 4), np.float32)
    yield from _disentangled("fewer queries", "expected positions as keys and as queries", position_queries=other)
    for size in (0, 7):
        indices = {name: np.zeros(size, np.int64) for name in ("key_indices", "query_indices")}
        yield from _disentangled(f"{size} indices", "expected indices of positions [2·M]", **indices)
    for wrong in (-1, 6, 1 << 62, -(1 << 63)):
        indices = np.full(8, wrong, np.int64)
        yield from _disentangled(f"an index of {wrong}", "indices of positions from 0 to P - 1", query_indices=indices)
    long = {"qkv": np.ones((1, 5, 12), np.float32), "mask": np.ones((1, 1, 5, 5), np.bool_)}
    yield from _disentangled("5 tokens of 4", "expected at most M tokens", **long)
    yield from _disentangled(
        "another head size", "of the head size of the positions", qkv=np.ones((1, 4, 24), np.float32)
    )
    none = {"qkv": np.ones((1, 0, 12), np.float32), "mask": np.ones((1, 1, 0, 0), np.bool_)}
    yield from _disentangled("no tokens", None, **none)
    yield from _disentangled("NaN positions", None, position_keys=np.full((1, 6, 4), np.nan, np.float32))
    for name in ("position_keys", "position_queries", "key_indices", "query_indices"):
        yield from _disentangled(f"no {name}", "", **{name: None})
