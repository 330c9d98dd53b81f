"""Outline the sum of embeddings and its LayerNormalization, with the quantization of the result if there is one."""

from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_export.function_calls import call_function
from bert_export.onnx_graph import NoMatch, add_initializer, constant, operators, producer, scope, sole_consumer
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["EMBEDDING_FUNCTIONS", "embedding_function", "is_packed", "outline_embeddings"]

EMBEDDING_FUNCTIONS = ("EmbedNorm", "EmbedNormQuantize")
"""The functions. Inputs: token ids [B, S]; their table [V, E] in float32, bfloat16, or int8 with scales [V, 1]; tables
of positions and of segments, each with ids [B, S] unless positions are 0, 1, 2, … and there is one segment; gamma
and beta. The second function has smoothing, scale and zero point, and the output of `AddNormQuantize`. Behind these, an
attention mask [B, S] lets kernels pack the rows, see `bert_export.pack_rows`.

A table that a model does not have is left out, so that the body depends on the call."""

_ARGUMENTS = (
    "input_ids", "token_table", "token_scales", "position_table", "position_ids", "segment_table", "segment_ids",
    "gamma", "beta",
)  # fmt: skip
_QUANTIZATION = ("smoothing", "scale", "zero_point")

_SCOPE = "encoder.embeddings"
"""The PyTorch module that the operators come from."""


@dataclass
class _Tables:
    """What is summed, as arguments of the functions."""

    arguments: dict[str, ir.Value | None] = field(default_factory=dict)

    def add(self, name: str, table: ir.Value | None, ids: ir.Value | None) -> None:
        """Add a table and its ids, after those before it in `_ARGUMENTS` alone: floats are summed in that order."""
        if len(constant(table).shape) != 2 or any(
            _ARGUMENTS.index(taken) >= _ARGUMENTS.index(f"{name}_table") for taken in self.arguments
        ):
            raise NoMatch(f"expected embeddings of tokens, positions and segments in this order, found {name}")
        self.arguments[f"{name}_table"] = table
        self.arguments["input_ids" if name == "token" else f"{name}_ids"] = ids


def outline_embeddings(graph: ir.Model) -> str:
    """Outline the embeddings of a graph in place, and return the function's name.

    Raises:
        NoMatch: they are not the LayerNormalization of a sum of rows of tables.
    """
    norms = [node for node in operators(graph, "LayerNormalization") if scope(node) == f"{_SCOPE}.norm"]
    if len(norms) != 1:
        raise NoMatch(f"expected one LayerNormalization in {_SCOPE}.norm, found {len(norms)}")
    (norm,) = norms
    tables = _Tables()
    _add_terms(norm.inputs[0], tables)
    if "input_ids" not in tables.arguments:
        raise NoMatch("expected embeddings of tokens")
    arguments = tables.arguments | {"gamma": norm.inputs[1], "beta": norm.inputs[2]}
    outputs, quantization = [norm.outputs[0]], dict[str, ir.Value | None]()
    for smooth in norm.outputs[0].consumers():
        if smooth.op_type == "Mul" and smooth.inputs[0] is norm.outputs[0]:
            quantize = sole_consumer(smooth.outputs[0], "QuantizeLinear")
            quantization = dict(zip(_QUANTIZATION, [smooth.inputs[1], *quantize.inputs[1:3]], strict=True))
            outputs.append(quantize.outputs[0])
            break
    for value in (arguments["gamma"], arguments["beta"], *quantization.values()):
        constant(value)
    names = (*_ARGUMENTS, *quantization)
    inputs = [(arguments | quantization).get(name) for name in names]
    attributes = {"epsilon": norm.attributes["epsilon"].as_float()}
    name = call_function(norm, EMBEDDING_FUNCTIONS[bool(quantization)], inputs, outputs, attributes)
    (call,) = operators(graph, name)
    function = embedding_function(call)
    graph.functions[function.identifier()] = function
    return name


def _add_terms(value: ir.Value | None, tables: _Tables) -> None:
    """Add the terms of a sum from left to right."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Add":
        if len(node.outputs[0].uses()) != 1:
            raise NoMatch("expected a sum of embeddings that is read once")
        for term in node.inputs:
            _add_terms(term, tables)
    elif node is None and value is not None and value.const_value is not None:
        tables.add("segment", _as_table(value), None)
    elif node is not None and node.op_type == "Mul":
        _add_int8_tokens(node, tables)
    else:
        _add_gathered(producer(value, "Gather"), tables)


def _as_table(row: ir.Value) -> ir.Value:
    """Return a table [1, E] of a row [E] that is added to every token."""
    graph, array = row.graph, constant(row)
    if array.ndim != 1 or graph is None:
        raise NoMatch(f"expected a row [E] that is added to every token, found {array.shape}")
    return add_initializer(graph, f"{row.name}.table", array[None])


def _add_int8_tokens(dequantize: ir.Node, tables: _Tables) -> None:
    """Add a table of int8 with scales, see `bert_export.quantization.embeddings`."""
    rows = producer(producer(dequantize.inputs[0], "Cast").inputs[0], "Gather")
    scales = producer(dequantize.inputs[1], "Gather")
    ids = rows.inputs[1]
    if ids is None or ids.name != "input_ids" or ids is not scales.inputs[1]:
        raise NoMatch("expected rows and scales of the same tokens")
    _add_gathered(rows, tables)
    constant(scales.inputs[0])
    tables.arguments["token_scales"] = scales.inputs[0]


def _add_gathered(gather: ir.Node, tables: _Tables) -> None:
    """Add the rows of a table that a Gather reads."""
    table, ids = gather.inputs
    if gather.attributes.get_int("axis", 0) != 0 or ids is None:
        raise NoMatch("expected rows of a table")
    if ids.is_graph_input():
        tables.add("token" if ids.name == "input_ids" else "segment", table, ids)
        return
    node = ids.producer()
    is_range = node is not None and node.op_type == "Range"
    if not is_range and (ids.shape is None or len(ids.shape) != 2):
        raise NoMatch("expected positions 0, 1, 2, …, or those of each token")
    tables.add("position", table, None if is_range else ids)


def is_packed(call: ir.Node) -> bool:
    """Return whether kernels of a call of the embeddings pack the rows."""
    return len(call.inputs) > len(_ARGUMENTS) + (len(_QUANTIZATION) if call.op_type == "EmbedNormQuantize" else 0)


def embedding_function(call: ir.Node) -> ir.Function:
    """Return the function that a call of the embeddings calls."""
    quantizes, packs = call.op_type == "EmbedNormQuantize", is_packed(call)
    arguments = [*_ARGUMENTS, *(_QUANTIZATION if quantizes else ()), *(["mask"] if packs else [])]
    given = dict(zip(arguments, call.inputs, strict=True))
    lines = _token_lines(given["token_table"], given["token_scales"] is not None)
    total = "token"
    if given["position_table"] is not None:
        lines += _position_lines(given["position_ids"] is not None)
        total = "placed"
    if given["segment_table"] is not None:
        segment = "segment_table"
        if given["segment_ids"] is not None:
            lines.append("segment = Gather (segment_table, segment_ids)")
            segment = "segment"
        lines.append(f"summed = Add ({total}, {segment})")
        total = "summed"
    lines.append(f"y = LayerNormalization <axis = -1, epsilon: float = @epsilon> ({total}, gamma, beta)")
    outputs = "y"
    if quantizes:
        lines += ["smoothed = Mul (y, smoothing)", "y_uint8 = QuantizeLinear (smoothed, scale, zero_point)"]
        outputs = "y, y_uint8"
    body = "\n        ".join(lines)
    source = f"""<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}]>
    {call.op_type} <epsilon> ({", ".join(arguments)}) => ({outputs}) {{
        {body}
    }}"""
    return ir.serde.deserialize_function(onnx.parser.parse_function(source))


def _token_lines(table: ir.Value | None, has_scales: bool) -> list[str]:
    if has_scales:
        return [
            "rows = Gather (token_table, input_ids)",
            "row_scales = Gather (token_scales, input_ids)",
            "floats = Cast <to = 1> (rows)",
            "token = Mul (floats, row_scales)",
        ]
    if table is not None and table.dtype == ir.DataType.BFLOAT16:
        return ["rows = Gather (token_table, input_ids)", "token = Cast <to = 1> (rows)"]
    return ["token = Gather (token_table, input_ids)"]


def _position_lines(has_ids: bool) -> list[str]:
    in_order = [
        "length = Shape <start = 1> (input_ids)",
        "tokens = Squeeze (length)",
        "first = Constant <value_int = 0> ()",
        "step = Constant <value_int = 1> ()",
        "positions = Range (first, tokens, step)",
    ]
    ids = "position_ids" if has_ids else "positions"
    lookup = [f"position = Gather (position_table, {ids})", "placed = Add (token, position)"]
    return [*([] if has_ids else in_order), *lookup]
