"""Groups of operators as functions, which the runtime's own kernels take the place of.

A function of an ONNX model says in standard operators what it computes. ONNX Runtime runs a kernel of that name where
the session has one (`bert_runtime.cpu.native_kernels`), and what the function consists of everywhere else: a bundle
needs no kernel, and where there is one, what lies between two products is one pass instead of three.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    NoMatch,
    as_linear,
    constant,
    insert_before,
    operators,
    producer,
    sole_consumer,
    tidy,
)
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["FUNCTIONS", "outline_kernels"]

_HEADER = f'<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}, "{MICROSOFT_DOMAIN}": 1]>'

_PRODUCT = f"{MICROSOFT_DOMAIN}.MatMulIntegerToFloat (x, weight, x_scale, scales, x_zero_point, , bias)"

_ATTENTION = """query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        attended = If (is_full) <
            then_branch = unmasked () => (float[batch, tokens, width] unmasked_y) {
                unmasked_y = Attention <q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads,
                    scale: float = @scale> (query, key, value)
            },
            else_branch = masked () => (float[batch, tokens, width] masked_y) {
                masked_y = Attention <q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads,
                    scale: float = @scale> (query, key, value, mask)
            }>"""
"""A copy of the mask is made for every head where there is one, see `add_padding_branch`."""

_SOURCES = (
    f"""{_HEADER}
    Linear (x, weight, bias) => (y) {{
        product = MatMul (x, weight)
        y = Add (product, bias)
    }}""",
    f"""{_HEADER}
    LinearGelu (x, weight, bias) => (y) {{
        product = MatMul (x, weight)
        sum = Add (product, bias)
        y = Gelu (sum)
    }}""",
    f"""{_HEADER}
    SelfAttention <num_heads, scale> (qkv, mask, is_full) => (attended) {{
        {_ATTENTION}
    }}""",
    f"""{_HEADER}
    QuantizedLinear (x, weight, x_scale, scales, x_zero_point, bias) => (y) {{
        y = {_PRODUCT}
    }}""",
    f"""{_HEADER}
    QuantizedLinearGelu (x, weight, x_scale, scales, x_zero_point, bias, y_scale, y_zero_point) => (y) {{
        sum = {_PRODUCT}
        activated = Gelu (sum)
        y = QuantizeLinear (activated, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedAttention <num_heads, scale> (qkv, mask, is_full, y_scale, y_zero_point) => (y) {{
        {_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    AddNormQuantize <epsilon> (x, residual, gamma, beta, smoothing, scale, zero_point) => (y, bytes) {{
        sum = Add (x, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
        smoothed = Mul (y, smoothing)
        bytes = QuantizeLinear (smoothed, scale, zero_point)
    }}""",
)

FUNCTIONS = {
    function.name: function
    for function in (ir.serde.deserialize_function(onnx.parser.parse_function(source)) for source in _SOURCES)
}
"""By name."""


def outline_kernels(model: ir.Model) -> tuple[ir.Model, Mapping[str, int]]:
    """A copy of a fused graph that calls the functions, and how often each. Weights are shared with `model`.

    What does not look as the kernels have it, such as another activation, stays as it is.
    """
    outlined = model.clone()
    counts: Counter[str] = Counter()
    for op_type, outline in (
        ("If", _attention),
        ("Gelu", _linear_gelu),
        ("MatMulIntegerToFloat", _quantized_linear),
        ("MatMul", _linear),
        ("LayerNormalization", _norm),
    ):
        for node in operators(outlined, op_type):
            try:
                counts[outline(node)] += 1
            except NoMatch:
                continue
        tidy(outlined)
    for name, function in FUNCTIONS.items():
        if counts[name]:
            outlined.functions[function.identifier()] = function
    if counts:
        outlined.graph.opset_imports[KERNEL_DOMAIN] = 1
    return outlined, dict(counts)


def _call(
    anchor: ir.Node,
    name: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Calls a function in the place of what computes `outputs`, and returns its name."""
    called = insert_before(anchor, name, inputs, like=outputs, attributes=attributes, domain=KERNEL_DOMAIN)
    for old, new in zip(outputs, called, strict=True):
        if old.is_graph_output():  # which keeps its name
            old.name, new.name = f"{old.name} in parts", old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    return name


_USUAL = {"q_num_heads", "kv_num_heads", "scale"}


def _attention(branch: ir.Node) -> str:
    readers = branch.outputs[0].consumers()
    quantize = readers[0] if len(readers) == 1 and readers[0].op_type == "QuantizeLinear" else None
    masked = branch.attributes["else_branch"].as_graph()
    found = [node.op_type for node in masked]
    if found != ["Attention"]:
        raise NoMatch(f"expected Attention in the branch, found {found}")
    attention = masked[0]
    query, key, value, mask = attention.inputs
    split = producer(query, "Split")
    if [*split.outputs] != [query, key, value]:
        raise NoMatch("expected queries, keys and values of one projection")
    unusual = {name: each.value for name, each in attention.attributes.items() if name not in _USUAL and each.value}
    if unusual:
        raise NoMatch(f"expected heads and a scale alone, found {unusual}")
    heads, kv_heads = (attention.attributes[f"{each}_num_heads"].as_int() for each in ("q", "kv"))
    if heads != kv_heads:
        raise NoMatch(f"expected as many heads of keys as of queries, found {kv_heads} and {heads}")
    width = query.shape[-1] if query is not None and query.shape is not None else None
    if not isinstance(width, int):
        raise NoMatch(f"expected queries of a fixed width, found {width}")
    scale = attention.attributes["scale"].as_float() if "scale" in attention.attributes else (width // heads) ** -0.5
    last, name = (branch, "SelfAttention") if quantize is None else (quantize, "QuantizedAttention")
    inputs = [split.inputs[0], mask, branch.inputs[0], *last.inputs[1:]]
    called = _call(last, name, inputs, last.outputs, {"num_heads": heads, "scale": scale})
    for body in ("then_branch", "else_branch"):  # its nodes read the values of the graph around it until they go
        graph = branch.attributes[body].as_graph()
        graph.outputs.clear()
        graph.remove([*graph], safe=True)
    return called


def _product(node: ir.Node) -> list[ir.Value | None]:
    x, weight, x_scale, scales, x_zero, weight_zero, bias = [*node.inputs, None][:7]
    for each in (x_scale, scales, x_zero, bias):
        constant(each)
    if constant(weight).shape[0] % 4 or weight_zero is not None:
        raise NoMatch("expected a bias, and a number of inputs that is a multiple of 4")
    return [x, weight, x_scale, scales, x_zero, bias]


def _linear_gelu(gelu: ir.Node) -> str:
    if gelu.attributes.get("approximate") is not None and gelu.attributes["approximate"].as_string() != "none":
        raise NoMatch("expected exact GELU")
    before = gelu.inputs[0].producer() if gelu.inputs[0] is not None else None
    if before is None:
        raise NoMatch("expected a product")
    sole_consumer(before.outputs[0], "Gelu")
    if before.op_type == "Add":
        linear = as_linear(before.outputs[0])
        return _call(gelu, "LinearGelu", [linear.input, linear.weight, linear.bias], gelu.outputs)
    product = producer(gelu.inputs[0], "MatMulIntegerToFloat")
    quantize = sole_consumer(gelu.outputs[0], "QuantizeLinear")
    for each in quantize.inputs[1:]:
        constant(each)
    return _call(quantize, "QuantizedLinearGelu", [*_product(product), *quantize.inputs[1:]], quantize.outputs)


def _quantized_linear(product: ir.Node) -> str:
    if not product.outputs[0].consumers():
        raise NoMatch("expected a product that is read")
    return _call(product, "QuantizedLinear", _product(product), product.outputs)


def _linear(matmul: ir.Node) -> str:
    add = sole_consumer(matmul.outputs[0], "Add")
    linear = as_linear(add.outputs[0])
    return _call(add, "Linear", [linear.input, linear.weight, linear.bias], add.outputs)


def _norm(norm: ir.Node) -> str:
    add = producer(norm.inputs[0], "Add")
    sole_consumer(add.outputs[0], "LayerNormalization")
    shapes = [None if each is None or each.shape is None else [*each.shape] for each in add.inputs]
    if shapes[0] is None or shapes[0] != shapes[1] or len(shapes[0]) != 3:  # a table of positions is shared by the rows
        raise NoMatch(f"expected two tensors of one shape, found {shapes}")
    for smooth in norm.outputs[0].consumers():
        if smooth.op_type != "Mul" or smooth.inputs[0] is not norm.outputs[0]:
            continue
        quantize = sole_consumer(smooth.outputs[0], "QuantizeLinear")
        inputs = [*add.inputs, *norm.inputs[1:3], smooth.inputs[1], *quantize.inputs[1:]]
        epsilon = norm.attributes["epsilon"].as_float()
        return _call(
            norm, "AddNormQuantize", inputs, [norm.outputs[0], quantize.outputs[0]], {"epsilon": epsilon}
        )  # fmt: skip
    raise NoMatch("expected bytes to be made of it")
