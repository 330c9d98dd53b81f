"""Hostile calls of embeddings, pooling, attention of the first token and packed rows: fields of `HostileGraph`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["calls"]

Call = tuple[Any, ...]

_IDS = ("input_ids", "position_ids", "segment_ids")


def _embeddings(name: str, error: str | None, variable: tuple[str, ...] = _IDS, **changes: Any) -> Iterator[Call]:
    """Yield a call of both functions; `changes` replace arguments."""
    values = {
        "input_ids": np.zeros((1, 4), np.int64),
        "token_table": np.ones((5, 8), np.float32),
        "token_scales": None,
        "position_table": np.ones((6, 8), np.float32),
        "position_ids": np.zeros((1, 4), np.int64),
        "segment_table": np.ones((2, 8), np.float32),
        "segment_ids": np.zeros((1, 4), np.int64),
        "gamma": np.ones(8, np.float32),
        "beta": np.ones(8, np.float32),
    } | changes
    extra = {"smoothing": np.ones(8, np.float32), "scale": np.float32(0.1), "zero_point": np.uint8(3)}
    arrays = {key: np.asarray(value) for key, value in extra.items()}
    epsilon = {"epsilon": values.pop("epsilon", 1e-12)}
    mask = {"mask": values.pop("mask")} if "mask" in values else {}  # the last argument
    yield f"EmbedNorm, {name}", error, "EmbedNorm", values | mask, variable, epsilon, ["y"]
    quantized = values | arrays | mask
    yield f"EmbedNormQuantize, {name}", error, "EmbedNormQuantize", quantized, variable, epsilon, ["y", "y_uint8"]


def _embedding_calls() -> Iterator[Call]:
    yield from _embeddings("as exported", None)
    yield from _embeddings("no positions", None, position_table=None, position_ids=None)
    yield from _embeddings("one segment", None, segment_ids=None, segment_table=np.ones((1, 8), np.float32))
    yield from _embeddings("no ids of two segments", "expected segment ids", segment_ids=None)
    yield from _embeddings("no tokens", None, **{name: np.zeros((1, 0), np.int64) for name in _IDS})
    yield from _embeddings("no sequences", None, **{name: np.zeros((0, 4), np.int64) for name in _IDS})
    for shape in ((4,), (1, 4, 1), ()):
        yield from _embeddings(f"ids {shape}", "expected ids [B, T]", input_ids=np.zeros(shape, np.int64))
    for argument in ("token_table", "position_table", "segment_table"):
        for shape in ((5, 7), (0, 8), (5, 8, 1), (40,), (5, 0)):
            wrong = np.ones(shape, np.float32)
            yield from _embeddings(f"{argument} {shape}", "expected tables of embeddings", **{argument: wrong})
    for argument in ("position_table", "segment_table"):
        yield from _embeddings(f"ids without {argument}", "and their tables", **{argument: None})
    for argument in ("position_ids", "segment_ids"):
        for shape in ((1, 3), (4,), (1, 1, 4)):
            yield from _embeddings(
                f"{argument} {shape}", "[B, T], and their tables", **{argument: np.zeros(shape, int)}
            )
    yield from _wrong_ids()
    yield from _int8_tables()
    for epsilon in (-1.0, float("nan")):
        yield from _embeddings(f"epsilon {epsilon}", "expected a finite epsilon", epsilon=epsilon)
    for vector in ("gamma", "beta"):
        yield from _embeddings(f"a variable {vector}", "that are constants", variable=(*_IDS, vector))
    yield from _embeddings("a short beta", "expected gamma, beta", beta=np.ones(4, np.float32))
    yield from _embeddings("no gamma", "", gamma=None)


def _wrong_ids() -> Iterator[Call]:
    for argument, end in zip(_IDS, (5, 6, 2), strict=True):
        for wrong in (end, -end - 1, (1 << 63) - 1, -(1 << 63)):
            ids = np.array([[0, 0, wrong, 0]])
            yield from _embeddings(f"{argument} {wrong}", f"from 0 to {end - 1}, found {wrong}", **{argument: ids})
    long = {"input_ids": np.zeros((1, 7), int), "position_ids": None, "segment_ids": None,
            "segment_table": None}  # fmt: skip
    yield from _embeddings("7 tokens of 6", "no more tokens than there are positions", **long)


def _int8_tables() -> Iterator[Call]:
    int8, scales = np.ones((5, 8), np.int8), np.ones((5, 1), np.float32)
    yield from _embeddings("int8", None, token_table=int8, token_scales=scales)
    yield from _embeddings("int8 without scales", "expected a scale for each row", token_table=int8)
    yield from _embeddings("float32 with scales", "expected a scale for each row", token_scales=scales)
    yield from _embeddings("short scales", "expected a scale", token_table=int8, token_scales=scales[:4])
    yield from _embeddings("float64", "float32, bfloat16 or int8", token_table=np.ones((5, 8)))


def _call(function: str, name: str, error: str | None, values: Mapping[str, Any], **attributes: Any) -> Call:
    return f"{function}, {name}", error, function, values, [*values], attributes, ["y"]


def _pools() -> Iterator[Call]:
    for function in ("MeanPool", "MeanPoolNormalize"):
        x, mask = np.ones((2, 4, 8), np.float32), np.ones((2, 4), np.int64)
        yield _call(function, "as exported", None, {"x": x, "mask": mask})
        yield _call(function, "numbers", None, {"x": x, "mask": np.full((2, 4), -(1 << 63))})
        for shape in ((0, 4, 8), (2, 0, 8), (2, 4, 0)):
            empty = {"x": np.ones(shape, np.float32), "mask": np.ones(shape[:2], bool)}
            yield _call(function, f"x {shape}", None, empty)
        for shape in ((4, 8), (2, 4, 8, 1), ()):
            yield _call(function, f"x {shape}", "expected x", {"x": np.ones(shape, np.float32), "mask": mask})
        for wrong in (mask[:, :3], mask[0], mask.astype(np.float32), mask.astype(np.int32)):
            yield _call(function, f"mask {wrong.shape} {wrong.dtype}", "expected x", {"x": x, "mask": wrong})


def _first_tokens() -> Iterator[Call]:
    def call(
        name: str, error: str | None, attributes: Mapping[str, Any] | None = None, **changes: np.ndarray[Any, Any]
    ) -> Call:
        values = {"query": np.ones((2, 1, 4), np.float32), "kv": np.ones((2, 5, 8), np.float32),
                  "mask": np.ones((2, 5), bool)}  # fmt: skip
        given = {"num_heads": 2, "scale": 0.5} | dict(attributes or {})
        return _call("FirstTokenAttention", name, error, values | changes, **given)

    yield call("as exported", None)
    yield call("numbers", None, mask=np.array([[1, 0, -1, 0, 0], [0] * 5]))
    for heads in (0, -1):
        yield call(f"{heads} heads", "expected num_heads of at least 1", {"num_heads": heads})
    for heads in (3, 1 << 62):
        yield call(f"{heads} heads of width 4", "expected a query", {"num_heads": heads})
    for shape in ((2, 2, 4), (1, 1, 4), (2, 4), (2, 1, 0), (2, 1, 6)):
        yield call(f"query {shape}", "expected a query", query=np.ones(shape, np.float32))
    for shape in ((2, 5, 7), (2, 40), (2, 5, 0), (2, 5, 12)):
        yield call(f"kv {shape}", "expected a query", kv=np.ones(shape, np.float32))
    for shape in ((2, 4), (10,), (2, 1, 1, 5)):
        yield call(f"mask {shape}", "expected a mask", mask=np.ones(shape, bool))
    none = {"kv": np.ones((2, 0, 8), np.float32), "mask": np.ones((2, 0), bool)}
    yield call("no tokens", None, **none)


def _packed_rows() -> Iterator[Call]:
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
    yield _call("FirstRows", "as exported", None, {"mask": mask})
    yield _call("UnpackRows", "as exported", None, {"rows": np.ones((1, 6, 8), np.float32), "mask": mask})
    yield _call("UnpackRows", "no columns", None, {"rows": np.ones((1, 6, 0), np.float32), "mask": mask})
    for shape in ((0, 4), (3, 0), (0, 0)):
        empty = np.ones(shape, bool)
        yield _call("FirstRows", f"mask {shape}", None, {"mask": empty})
        yield _call("UnpackRows", f"mask {shape}", None, {"rows": np.ones((1, 0, 8), np.float32), "mask": empty})
    for wrong in (mask[0], mask[None], mask.astype(np.float32), mask.astype(np.int32)):
        name = f"mask {wrong.shape} {wrong.dtype}"
        yield _call("FirstRows", name, "expected a mask of bool or int64", {"mask": wrong})
        rows = {"rows": np.ones((1, 6, 8), np.float32), "mask": wrong}
        yield _call("UnpackRows", name, "and a mask of bool or int64", rows)
    for shape in ((1, 7, 8), (1, 0, 8), (1, 5, 8)):
        rows = {"rows": np.ones(shape, np.float32), "mask": mask}
        yield _call("UnpackRows", f"packed {shape}", "as many packed rows", rows)
    for shape in ((6, 8), (2, 3, 8), (0, 6, 8), (1, 6, 8, 1), ()):
        rows = {"rows": np.ones(shape, np.float32), "mask": mask}
        yield _call("UnpackRows", f"packed {shape}", "expected packed rows", rows)
    yield from _embeddings("a mask", None, (*_IDS, "mask"), mask=np.array([[1, 0, 1, 0]]))
    for wrong in (np.ones((1, 3), bool), np.ones((2, 4), bool), np.ones(4, bool), np.ones((1, 4), np.float32)):
        name = f"a mask {wrong.shape} {wrong.dtype}"
        yield from _embeddings(name, "expected a mask of bool or int64", (*_IDS, "mask"), mask=wrong)


def calls() -> Iterator[Call]:
    """Yield calls whose arguments and attributes do not fit together, and unusual ones that run."""
    for group in (_embedding_calls, _pools, _first_tokens, _packed_rows):
        yield from group()
