"""Graphs that call the functions of native kernels with inputs, constants and attributes that do not fit together."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
_PARENT = "" if __name__ == "hostile_graphs" else f"{__package__}."
_CALLS = [
    import_module(f"{_PARENT}{name}").calls for name in ("hostile_disentangled", "hostile_heads", "hostile_pruning")
]

_DOMAIN = "bert_export"
_OUTPUT_TYPES = {
    "QuantizedLinearGelu": [TensorProto.UINT8],
    "QuantizedAttention": [TensorProto.UINT8],
    "QuantizedRelativeAttention": [TensorProto.UINT8],
    "QuantizedDisentangledAttention": [TensorProto.UINT8],
    "QuantizedRotaryAttention": [TensorProto.UINT8],
    "QuantizedLocalAttention": [TensorProto.UINT8],
    "QuantizedLinearGatedGelu": [TensorProto.UINT8],
    "QuantizedLinearGatedSilu": [TensorProto.UINT8],
    "AddPreNormQuantize": [TensorProto.FLOAT, TensorProto.UINT8],
    "AddNormQuantize": [TensorProto.FLOAT, TensorProto.UINT8],
    "AddPreNorm": [TensorProto.FLOAT, TensorProto.FLOAT],
    "EmbedNormQuantize": [TensorProto.FLOAT, TensorProto.UINT8],
    "KeepTokens": [TensorProto.INT64, TensorProto.BOOL, TensorProto.BOOL, TensorProto.BOOL],
    "FirstRows": [TensorProto.INT64],
}


class HostileGraph(NamedTuple):
    """A graph of one call."""

    name: str
    error: str | None
    """Part of the expected error, empty for any; `None` where it runs."""
    function: str
    values: Mapping[str, Array | None]
    """The arguments in order; `None` leaves one out."""
    variable: Sequence[str]
    """Those arguments that are inputs of the graph; the others are constants."""
    attributes: Mapping[str, Any]
    outputs: Sequence[str]
    """Names of the outputs; an empty one leaves one out."""

    def to_bytes(self) -> bytes:
        """Return the ONNX file."""
        names = [name if value is not None else "" for name, value in self.values.items()]
        node = helper.make_node(self.function, names, [*self.outputs], domain=_DOMAIN, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), [f"{name}_{axis}" for axis in range(array.ndim)]
            )
            for name, array in self.inputs().items()
        ]
        constants = [
            numpy_helper.from_array(array, name)
            for name, array in self.values.items()
            if array is not None and name not in self.variable
        ]
        types = _OUTPUT_TYPES.get(self.function, [TensorProto.FLOAT])
        outputs = [
            helper.make_tensor_value_info(name, output_type, None)
            for name, output_type in zip(self.outputs, types, strict=False)
            if name
        ]
        graph = helper.make_graph([node], "call", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def inputs(self) -> dict[str, Array]:
        """Return the values of the graph's inputs."""
        return {name: array for name, array in self.values.items() if array is not None and name in self.variable}


ATTENTIONS = (
    "SelfAttention", "Bf16SelfAttention", "QuantizedAttention",
    "RelativeAttention", "Bf16RelativeAttention", "QuantizedRelativeAttention",
)  # fmt: skip
ROTARY_ATTENTIONS = [f"{prefix}{kind}Attention" for prefix in ("", "Bf16", "Quantized") for kind in ("Rotary", "Local")]

_QUANTIZATION = ("y_scale", "y_zero_point")


def _attention(
    name: str, error: str | None, attributes: Mapping[str, Any] | None = None, **changes: Array | None
) -> Iterator[HostileGraph]:
    """Yield a call of each attention; `changes` replace arguments, `attributes` those of one head."""
    values = {
        "qkv": np.ones((1, 4, 12), np.float32),
        "mask": np.ones((1, 1, 4, 4), np.bool_),
        "is_full": np.asarray(False),
        "bias": np.ones((1, 7), np.float32),
        "y_scale": np.asarray(np.float32(0.1)),
        "y_zero_point": np.asarray(np.uint8(3)),
    } | changes
    variable, attributes = ("qkv", "mask", "is_full", "bias"), {"num_heads": 1, "scale": 0.5} | (attributes or {})
    attributes = {key: value for key, value in attributes.items() if value is not None}
    for function in ATTENTIONS:
        unread = [*([] if "Relative" in function else ["bias"]), *([] if "Quantized" in function else _QUANTIZATION)]
        if changes and set(changes) <= set(unread):
            continue
        arguments = {key: value for key, value in values.items() if key not in unread}
        yield HostileGraph(f"{function}, {name}", error, function, arguments, variable, attributes, ["y"])


def _attention_masks() -> Iterator[HostileGraph]:
    """Yield calls of every attention with masks of other types and shapes."""
    yield from _attention("no mask", "", mask=None)
    for mask in (np.ones((1, 4), np.bool_), np.array([[1, -1, 1 << 62, 0]]), np.zeros((1, 4), np.int64)):
        yield from _attention(f"a mask {mask.tolist()} of keys", None, mask=mask, is_full=None)
    for mask in (np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 4, 4), np.int64), np.ones((1, 4), np.int32)):
        of = "expected a mask of bool, or of int64 [B, T]"
        yield from _attention(f"a mask {mask.shape} of {mask.dtype}", of, mask=mask)
    for shape in ((16,), (1, 4, 4), (4, 4, 1, 1), (1, 4, 1, 4), (1, 1, 4, 3), (0,)):
        yield from _attention(f"a mask {shape}", "expected a mask [B, T] or [B, 1, T, T]", mask=np.ones(shape, bool))
    yield from _attention("two flags", "expected one flag", is_full=np.zeros(2, np.bool_))
    packed = {"qkv": np.ones((1, 2, 12), np.float32), "mask": np.eye(2, 4, dtype=bool)[[0, 0]]}
    yield from _attention("packed rows of a mask that is said to be full", None, **packed, is_full=np.asarray(True))


def _attentions() -> Iterator[HostileGraph]:
    """Yield calls of every attention."""
    for heads in (0, -1, -(1 << 63)):
        yield from _attention(f"{heads} heads", "expected num_heads of at least 1", {"num_heads": heads})
    for heads in (5, 24, 1 << 62, (1 << 63) - 1, (1 << 64) // 3 + 1):  # 3 times the last is 2 modulo 2⁶⁴
        yield from _attention(f"{heads} heads of width 4", "expected queries, keys and values", {"num_heads": heads})
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        yield from _attention(f"a scale of {scale}", "a finite scale above 0", {"scale": scale})
    for attribute in ("num_heads", "scale"):
        yield from _attention(f"no {attribute}", attribute, {attribute: None})
    for shape in ((1, 4, 0), (1, 1 << 32, 0), (1, 4, 13), (4, 12), (1,) * 9):
        yield from _attention(f"qkv {shape}", "expected", qkv=np.ones(shape, np.float32), mask=np.ones(0, np.bool_))
    yield from _attention("no sequences", None, qkv=np.ones((0, 4, 12), np.float32), mask=np.ones((0, 1, 4, 4), bool))
    no_tokens = {"qkv": np.ones((1, 0, 12), np.float32), "mask": np.ones((1, 1, 0, 0), bool)}
    yield from _attention("no tokens", None, **no_tokens, bias=np.ones((1, 0), np.float32))
    for shape in ((7,), (1, 8), (2, 7), (7, 1), (1, 1, 7), (0, 7), (1, 0)):
        yield from _attention(f"a bias {shape}", "expected a bias [num_heads", bias=np.ones(shape, np.float32))
    bytes_2 = np.full((1, 1, 4, 4), 2, np.uint8).view(np.bool_)
    yield from _attention("booleans of byte 2", None, mask=bytes_2, is_full=np.full(1, 2, np.uint8).view(np.bool_))
    yield from _attention("a mask of bytes 2", None, mask=bytes_2)
    for scale in (0.0, np.nan):
        yield from _attention(f"y_scale of {scale}", None, y_scale=np.asarray(np.float32(scale)))


def _rotary(
    name: str, error: str | None, attributes: Mapping[str, Any] | None = None, **changes: Array | None
) -> Iterator[HostileGraph]:
    """Yield a call of each attention with rotations; `changes` replace arguments, `attributes` those of one head."""
    values = {
        "qkv": np.ones((1, 4, 12), np.float32),
        "mask": np.ones((1, 4), np.bool_),
        "is_full": np.asarray(False),
        "cos": np.ones((6, 2), np.float32),
        "sin": np.ones((6, 2), np.float32),
        "y_scale": np.asarray(np.float32(0.1)),
        "y_zero_point": np.asarray(np.uint8(3)),
    } | changes
    for function in ROTARY_ATTENTIONS:
        window = {"window": 2} if "Local" in function else {}
        given = {"num_heads": 1, "scale": 0.5, **window, **(attributes or {})}
        given = {key: value for key, value in given.items() if value is not None and (window or key != "window")}
        arguments = {key: value for key, value in values.items() if "Quantized" in function or key[:2] != "y_"}
        variable = ("qkv", "mask", "is_full", "cos", "sin")
        yield HostileGraph(f"{function}, {name}", error, function, arguments, variable, given, ["y"])


def _rotaries() -> Iterator[HostileGraph]:
    """Yield calls of every attention with rotations."""
    yield from _rotary("as exported", None)
    for window in (1, 3, (1 << 31) - 1):
        yield from _rotary(f"a window of {window}", None, {"window": window})
    for window in (0, -1, 1 << 31, (1 << 63) - 1):
        for graph in _rotary(f"a window of {window}", "expected a window of 1 to", {"window": window}):
            if "Local" in graph.function:
                yield graph
    for shape in ((4,), (1, 5), (2, 4), (1, 1, 4, 4), (0,)):
        yield from _rotary(f"a mask {shape}", "expected a mask [B, T]", mask=np.ones(shape, np.bool_))
    for shape in ((3, 2), (6, 1), (12,), (6, 2, 1), (0, 2)):
        for argument in ("cos", "sin"):
            yield from _rotary(f"{argument} {shape}", "cosines and sines", **{argument: np.ones(shape, np.float32)})
    odd = {
        "qkv": np.ones((1, 4, 9), np.float32),
        "cos": np.ones((6, 1), np.float32),
        "sin": np.ones((6, 1), np.float32),
    }
    yield from _rotary("heads of width 3", "expected an even S", **odd)
    no_tokens = {"qkv": np.ones((1, 0, 12), np.float32), "mask": np.ones((1, 0), bool)}
    yield from _rotary("no tokens", None, **no_tokens)
    yield from _rotary("a mask of bytes 2", None, mask=np.full((1, 4), 2, np.uint8).view(np.bool_))
    yield from _rotary("no keys", None, mask=np.zeros((1, 4), np.bool_))


def _weight_type(function: str) -> type[np.generic]:
    """Return the element type of a linear layer's weight."""
    if function.startswith("Bf16"):
        return ml_dtypes.bfloat16
    return np.int8 if function.startswith("Quantized") else np.float32


def _linear(
    name: str, error: str | None, function: str = "QuantizedLinear", variable: Sequence[str] = ("x",),
    extra: Mapping[str, Array] | None = None, **changes: Array | None,
) -> HostileGraph:  # fmt: skip
    """Return a call of a linear layer, 8 → 3; `changes` replace arguments, `extra` are added behind them."""
    is_int8 = function.startswith("Quantized")
    values: dict[str, Array | None] = {
        "x": np.ones((1, 2, 8), np.uint8 if is_int8 else np.float32),
        "weight": np.ones((8, 3), _weight_type(function)),
    }
    if is_int8:
        values |= {
            "x_scale": np.asarray(np.float32(0.02)),
            "scales": np.ones(3, np.float32),
            "x_zero_point": np.asarray(np.uint8(3)),
        }
    values |= {"bias": np.zeros(3, np.float32), **(extra or {})} | changes
    return HostileGraph(f"{function}, {name}", error, function, values, variable, {}, ["y"])


def _linears() -> Iterator[HostileGraph]:
    """Yield calls of QuantizedLinear, QuantizedLinearGelu and the gated ones."""
    scalar_scale, scalar_zero = np.asarray(np.float32(0.1)), np.asarray(np.uint8(3))
    yield _linear("as exported", None)
    yield _linear("no rows", None, x=np.ones((0, 2, 8), np.uint8))
    for argument in ("weight", "x_scale", "scales", "x_zero_point", "bias"):
        yield _linear(f"no {argument}", "", **{argument: None})
    for argument in ("scales", "bias"):
        yield _linear(f"a short {argument}", "expected a weight [K, N]", **{argument: np.ones(2, np.float32)})
    for rows, columns in ((0, 3), (6, 3), (8, 0)):
        weight = np.ones((rows, columns), np.int8)
        yield _linear(f"a weight [{rows}, {columns}]", "expected a weight [K, N]", weight=weight)
    for rows, error in ((65_792, None), (65_796, "K up to 65,793"), (70_000, "K up to 65,793")):
        x, weight = np.full((1, 2, rows), 255, np.uint8), np.full((rows, 3), -128, np.int8)
        yield _linear(f"{rows} inputs", error, x=x, weight=weight)
    yield _linear("no x_scale values", "expected one scale and one zero point", x_scale=np.zeros(0, np.float32))
    yield _linear("a variable weight", "that are constants", variable=("x", "weight"))
    for shape in ((), (1, 2, 9), (8, 1), (1,) * 9):
        yield _linear(f"x {shape}", "expected", x=np.ones(shape, np.uint8))
    yield _linear("a weight of rank 3", "expected a weight [K, N]", weight=np.ones((8, 3, 1), np.int8))
    yield _linear("a weight of uint8", "tensor(uint8)", weight=np.ones((8, 3), np.uint8))
    yield _linear("seven arguments", "", extra={"more": np.zeros(3, np.float32)})
    for scale, error in ((scalar_scale, None), (np.zeros((), np.float32), None), (np.ones(2, np.float32), "one scale")):
        output = {"y_scale": scale, "y_zero_point": scalar_zero}
        yield _linear(f"y_scale {scale.tolist()}", error, "QuantizedLinearGelu", extra=output)
    yield _linear("no y_zero_point", "", "QuantizedLinearGelu", extra={"y_scale": scalar_scale})
    output = {"y_scale": scalar_scale, "y_zero_point": scalar_zero}
    even = {"weight": np.ones((8, 4), np.int8), "scales": np.ones(4, np.float32), "bias": np.ones(4, np.float32)}
    gated = "QuantizedLinearGatedGelu"
    yield _linear("as exported", None, gated, extra=output, **even)
    yield _linear("as exported", None, "QuantizedLinearGatedSilu", extra=output, **even)
    yield _linear("an odd number of columns", "expected a weight [K, 2·N]", gated, extra=output)
    yield _linear("short scales", "expected a weight", gated, extra=output, **even | {"scales": np.ones(2, np.float32)})
    yield _linear("6 inputs", "multiple of 4", gated, extra=output, **even | {"weight": np.ones((6, 4), np.int8)})
    yield _linear("no inputs", "expected a weight", gated, extra=output, **even | {"weight": np.ones((0, 4), np.int8)})


def _float_linears() -> Iterator[HostileGraph]:
    """Yield calls of linear layers of float32, whose weights are float32 or bfloat16."""
    for prefix in ("", "Bf16"):
        weight_type = _weight_type(f"{prefix}Linear")
        wide = {"weight": np.ones((8, 4), weight_type), "bias": np.ones(4, np.float32)}
        for function in (f"{prefix}LinearGatedGelu", f"{prefix}LinearGatedSilu"):
            yield _linear("as exported", None, function, **wide)
            yield _linear("an odd number of columns", "expected a weight [K, 2·N]", function)
            yield _linear(
                "a short bias", "expected a weight [K, 2·N]", function, **wide | {"bias": np.ones(2, np.float32)}
            )
        for function in (f"{prefix}Linear", f"{prefix}LinearGelu"):
            yield _linear("as exported", None, function)
            yield _linear("no rows", None, function, x=np.ones((0, 2, 8), np.float32))
            yield _linear("a weight of rank 1", "expected a weight [K, N]", function, weight=np.ones(8, weight_type))
            yield _linear("a short bias", "expected a weight [K, N]", function, bias=np.zeros(2, np.float32))
            x, weight = np.ones((1, 2, 0), np.float32), np.ones((0, 3), weight_type)
            yield _linear("a weight [0, 3]", "expected a weight [K, N]", function, x=x, weight=weight)
            odd = {"x": np.ones((1, 2, 7), np.float32), "weight": np.ones((7, 3), weight_type)}
            yield _linear("7 inputs", None, function, **odd)
    for function, weight_type in (
        ("Bf16Linear", np.float32),
        ("Bf16Linear", np.float16),
        ("Linear", ml_dtypes.bfloat16),
    ):
        weight = np.ones((8, 3), weight_type)
        yield _linear(f"a weight of {weight.dtype}", "tensor(", function, weight=weight)
    yield _linear("a variable weight", "that are constants", "Bf16Linear", variable=("x", "weight"))


def _norm(
    name: str, error: str | None, outputs: Sequence[str] = ("y", "y_uint8"), epsilon: float = 1e-12,
    variable: Sequence[str] = ("x", "residual"), function: str = "AddNormQuantize", **changes: Array,
) -> HostileGraph:  # fmt: skip
    """Return a call of AddNormQuantize with 8 columns, or of another function; `changes` replace arguments."""
    values = {
        "x": np.ones((1, 2, 8), np.float32),
        "residual": np.ones((1, 2, 8), np.float32),
        **dict.fromkeys(("gamma", "beta", "smoothing"), np.ones(8, np.float32)),
        "scale": np.asarray(np.float32(0.1)),
        "zero_point": np.asarray(np.uint8(3)),
    } | changes
    return HostileGraph(f"{function}, {name}", error, function, values, variable, {"epsilon": epsilon}, outputs)


def _norms() -> Iterator[HostileGraph]:
    """Yield calls of AddNormQuantize and AddPreNormQuantize."""
    yield _norm("as exported", None)
    yield _norm("as exported", None, function="AddPreNormQuantize", outputs=("sum", "y_uint8"))
    yield _norm("no first output", "", ["", "y_uint8"])
    yield _norm("no second output", "", ["y"])
    for epsilon in (-1.0, float("nan"), float("inf")):
        yield _norm(f"epsilon {epsilon}", "expected a finite epsilon", epsilon=epsilon)
    for vector in ("gamma", "beta", "smoothing"):
        yield _norm(f"a short {vector}", "smoothing [C]", **{vector: np.ones(4, np.float32)})
    for columns, error in ((0, "smoothing [C]"), (4, "expected two tensors")):
        vectors = dict.fromkeys(("gamma", "beta", "smoothing"), np.ones(columns, np.float32))
        yield _norm(f"vectors of {columns} columns", error, **vectors)
    for argument in ("gamma", "zero_point"):
        yield _norm(f"a variable {argument}", "that are constants", variable=("x", "residual", argument))
    for shape in ((), (1, 2, 0), (1,) * 9):
        ones = np.ones(shape, np.float32)
        yield _norm(f"x {shape}", "expected", x=ones, residual=ones)
    yield _norm("a broadcast residual", "expected two tensors", residual=np.ones((1, 1, 8), np.float32))
    yield _norm("a scale of 0", None, scale=np.asarray(np.float32(0)))
    yield _norm("no scale values", "expected one scale and one zero point", scale=np.zeros(0, np.float32))


def _float_norms() -> Iterator[HostileGraph]:
    """Yield calls of AddNorm and AddPreNorm."""
    for function, outputs in (("AddNorm", ["y"]), ("AddPreNorm", ["sum", "y"])):
        for name, error, changes in _float_norm_cases():
            graph = _norm(name, error, outputs, function=function, **changes)
            values = {key: graph.values[key] for key in ("x", "residual", "gamma", "beta")}
            yield graph._replace(values=values)
    for outputs in (["", "y"], ["sum", ""]):
        graph = _norm(f"outputs {outputs}", "", outputs, function="AddPreNorm")
        yield graph._replace(values={key: graph.values[key] for key in ("x", "residual", "gamma", "beta")})


def _float_norm_cases() -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Yield names, expected errors and changed arguments of calls of AddNorm and AddPreNorm."""
    yield "as exported", None, {}
    yield "no rows", None, {name: np.ones((0, 8), np.float32) for name in ("x", "residual")}
    for epsilon in (-1.0, float("nan"), float("inf")):
        yield f"epsilon {epsilon}", "expected a finite epsilon", {"epsilon": epsilon}
    for vector in ("gamma", "beta"):
        yield f"a short {vector}", "gamma and beta [C]", {vector: np.ones(4, np.float32)}
        yield f"a variable {vector}", "that are constants", {"variable": ("x", "residual", vector)}
    for columns, error in ((0, "gamma and beta [C]"), (4, "expected two tensors")):
        yield f"vectors of {columns} columns", error, dict.fromkeys(("gamma", "beta"), np.ones(columns, np.float32))
    for shape in ((), (1, 2, 0), (1,) * 9):
        yield f"x {shape}", "expected", dict.fromkeys(("x", "residual"), np.ones(shape, np.float32))
    yield "a broadcast residual", "expected two tensors", {"residual": np.ones((1, 1, 8), np.float32)}


def hostile_graphs() -> dict[str, HostileGraph]:
    """Return the graphs by name."""
    groups = (
        _attentions,
        _attention_masks,
        _rotaries,
        _linears,
        _float_linears,
        _norms,
        _float_norms,
    )
    graphs = [
        *(graph for group in groups for graph in group()),
        *(HostileGraph(*call) for calls in _CALLS for call in calls()),
    ]
    return {graph.name: graph for graph in graphs}
