"""Hostile calls of KeepTokens: the fields of `HostileGraph`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["calls"]

_OUTPUTS = ("indices", "kept_mask", "attention_mask", "is_full")

Call = tuple[Any, ...]


def _call(name: str, error: str | None, attributes: dict[str, Any] | None = None, **changes: Any) -> Call:
    values = {
        "qkv": np.ones((2, 40, 12), np.float32), "mask": np.ones((2, 40), bool), "lengths": np.array([40, 40])
    }  # fmt: skip
    changed = {"num_heads": 2, "scale": 0.5, "percent": 50} | (attributes or {})
    present = {key: value for key, value in changed.items() if value is not None}
    return f"KeepTokens, {name}", error, "KeepTokens", values | changes, [*values], present, _OUTPUTS


def calls() -> Iterator[Call]:
    """Yield calls whose arguments and attributes do not fit together, and unusual ones that run."""
    yield _call("as exported", None)
    for attribute, unfit in (("num_heads", (0, -1)), ("scale", (0.0, float("nan"))), ("percent", (0, 101, -(1 << 63)))):
        yield _call(f"no {attribute}", attribute, {attribute: None})
        for value in unfit:
            yield _call(f"{attribute} {value}", "expected num_heads of at least 1", {attribute: value})
    for heads in (5, 1 << 62):
        yield _call(f"{heads} heads", "expected queries, keys and values", {"num_heads": heads})
    for shape in ((2, 40, 0), (2, 40, 13), (40, 12), (1,) * 9):
        yield _call(f"qkv {shape}", "expected", qkv=np.ones(shape, np.float32))
    for shape in ((2, 39), (80,), (2, 1, 40)):
        yield _call(f"a mask {shape}", "a mask [B, T] and lengths [B]", mask=np.ones(shape, bool))
    for shape in ((1,), (2, 1), ()):
        yield _call(f"lengths {shape}", "a mask [B, T] and lengths [B]", lengths=np.full(shape, 40))
    for length in (-(1 << 63), -1, 0, 41, (1 << 63) - 1):
        yield _call(f"a length of {length}", None, lengths=np.array([length, 40]))
    yield _call("nothing but padding", None, mask=np.zeros((2, 40), bool))
    for number in (np.nan, np.inf, -np.inf):
        yield _call(f"queries of {number}", None, qkv=np.full((2, 40, 12), number, np.float32))
    for shape in ((0, 40), (2, 0), (0, 0)):
        empty = {"mask": np.ones(shape, bool), "lengths": np.full(shape[0], 40)}
        yield _call(f"sequences {shape}", None, qkv=np.ones((*shape, 12), np.float32), **empty)
