"""ONNX functions for which the runtime has native kernels, see `bert_export.outline_kernels`.

A function of an ONNX model defines in standard operators what it computes. ONNX Runtime runs a kernel of that name
where the session has one (`bert_runtime.cpu.native_kernels`), and inlines the function's body everywhere else. So a
bundle needs no kernel, and a kernel fuses the element-wise operators between two matmuls into one pass.
"""

import re
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from bert_export.attention_functions import (
    ATTENTION,
    DISENTANGLED_ATTENTION,
    FIRST_TOKEN_ATTENTION,
    LOCAL_ATTENTION,
    RELATIVE_ATTENTION,
    ROTARY_ATTENTION,
)
from bert_export.capture import OPSET
from bert_export.onnx_graph import MICROSOFT_DOMAIN
from bert_export.outline_heads import MIN_NORM, MIN_WEIGHT
from bert_export.position_functions import POSITION_TABLES
from bert_export.pruning_function import KEEP_TOKENS
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["BF16_FUNCTIONS", "FUNCTIONS"]

_HEADER = f'<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}, "{MICROSOFT_DOMAIN}": 1]>'

_INT8_MATMUL = f"{MICROSOFT_DOMAIN}.MatMulIntegerToFloat (x, weight, x_scale, scales, x_zero_point, , bias)"

_TABLES = ", ".join(POSITION_TABLES)

_ADD_NORM_QUANTIZE = """sum = Add (x, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
        smoothed = Mul (y, smoothing)
        y_uint8 = QuantizeLinear (smoothed, scale, zero_point)"""

_MEAN = f"""numbers = Cast <to = 1> (mask)
        last_axis = Constant <value_ints = [-1]> ()
        weights = Unsqueeze (numbers, last_axis)
        weighted = Mul (x, weights)
        tokens = Constant <value_ints = [1]> ()
        total = ReduceSum <keepdims = 0> (weighted, tokens)
        count = ReduceSum <keepdims = 0> (weights, tokens)
        min_weight = Constant <value_float = {MIN_WEIGHT}> ()
        divisor = Clip (count, min_weight)"""

_FLOAT_SOURCES = (
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
        {ATTENTION}
    }}""",
    f"""{_HEADER}
    RelativeAttention <num_heads, scale> (qkv, mask, is_full, bias) => (attended) {{
        {RELATIVE_ATTENTION}
    }}""",
    f"""{_HEADER}
    RotaryAttention <num_heads, scale> (qkv, mask, is_full, cos, sin) => (attended) {{
        {ROTARY_ATTENTION}
    }}""",
    f"""{_HEADER}
    LocalAttention <num_heads, scale, window> (qkv, mask, is_full, cos, sin) => (attended) {{
        {LOCAL_ATTENTION}
    }}""",
    f"""{_HEADER}
    LinearGatedGelu (x, weight, bias) => (y) {{
        product = MatMul (x, weight)
        sum = Add (product, bias)
        gate, up = Split <axis = -1, num_outputs = 2> (sum)
        activated = Gelu (gate)
        y = Mul (activated, up)
    }}""",
    f"""{_HEADER}
    LinearGatedSilu (x, weight, bias) => (y) {{
        product = MatMul (x, weight)
        sum = Add (product, bias)
        gate, up = Split <axis = -1, num_outputs = 2> (sum)
        sigmoid = Sigmoid (gate)
        activated = Mul (gate, sigmoid)
        y = Mul (activated, up)
    }}""",
    f"""{_HEADER}
    DisentangledAttention <num_heads, scale> (qkv, mask, is_full, {_TABLES}) => (attended) {{
        {DISENTANGLED_ATTENTION}
    }}""",
)

_NORM_SOURCES = (
    f"""{_HEADER}
    AddNorm <epsilon> (x, residual, gamma, beta) => (y) {{
        sum = Add (x, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
    }}""",
    f"""{_HEADER}
    AddPreNorm <epsilon> (x, residual, gamma, beta) => (sum, y) {{
        sum = Add (x, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
    }}""",
)

_HEAD_SOURCES = (
    f"""{_HEADER}
    MeanPool (x, mask) => (y) {{
        {_MEAN}
        y = Div (total, divisor)
    }}""",
    f"""{_HEADER}
    MeanPoolNormalize (x, mask) => (y) {{
        {_MEAN}
        mean = Div (total, divisor)
        length = ReduceL2 <keepdims = 1> (mean, last_axis)
        min_norm = Constant <value_float = {MIN_NORM}> ()
        length_or_min = Clip (length, min_norm)
        y = Div (mean, length_or_min)
    }}""",
    f"""{_HEADER}
    FirstTokenAttention <num_heads, scale> (query, kv, mask) => (attended) {{
        {FIRST_TOKEN_ATTENTION}
    }}""",
)

_ROW_SOURCES = (
    f"""{_HEADER}
    FirstRows (mask) => (indices) {{
        batch = Shape <end = 1> (mask)
        end = Squeeze (batch)
        start = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        sequences = Range (start, end, step)
        axes = Constant <value_ints = [1, 2]> ()
        column = Unsqueeze (sequences, axes)
        zeros = Mul (column, start)
        indices = Concat <axis = -1> (column, zeros)
    }}""",
    f"""{_HEADER}
    UnpackRows (rows, mask) => (y) {{
        y = Identity (rows)
    }}""",
)

_QUANTIZED_SOURCES = (
    f"""{_HEADER}
    QuantizedLinear (x, weight, x_scale, scales, x_zero_point, bias) => (y) {{
        y = {_INT8_MATMUL}
    }}""",
    f"""{_HEADER}
    QuantizedLinearGelu (x, weight, x_scale, scales, x_zero_point, bias, y_scale, y_zero_point) => (y) {{
        sum = {_INT8_MATMUL}
        activated = Gelu (sum)
        y = QuantizeLinear (activated, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedAttention <num_heads, scale> (qkv, mask, is_full, y_scale, y_zero_point) => (y) {{
        {ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedRelativeAttention <num_heads, scale> (qkv, mask, is_full, bias, y_scale, y_zero_point) => (y) {{
        {RELATIVE_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedLinearGatedGelu (x, weight, x_scale, scales, x_zero_point, bias, y_scale, y_zero_point) => (y) {{
        sum = {_INT8_MATMUL}
        gate, up = Split <axis = -1, num_outputs = 2> (sum)
        activated = Gelu (gate)
        gated = Mul (activated, up)
        y = QuantizeLinear (gated, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedLinearGatedSilu (x, weight, x_scale, scales, x_zero_point, bias, y_scale, y_zero_point) => (y) {{
        sum = {_INT8_MATMUL}
        gate, up = Split <axis = -1, num_outputs = 2> (sum)
        sigmoid = Sigmoid (gate)
        activated = Mul (gate, sigmoid)
        gated = Mul (activated, up)
        y = QuantizeLinear (gated, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedRotaryAttention <num_heads, scale> (qkv, mask, is_full, cos, sin, y_scale, y_zero_point) => (y) {{
        {ROTARY_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedLocalAttention <num_heads, scale, window> (qkv, mask, is_full, cos, sin, y_scale, y_zero_point) => (y) {{
        {LOCAL_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    AddPreNormQuantize <epsilon> (x, residual, gamma, beta, smoothing, scale, zero_point) => (sum, y_uint8) {{
        {_ADD_NORM_QUANTIZE}
    }}""",
    f"""{_HEADER}
    QuantizedDisentangledAttention <num_heads, scale> (qkv, mask, is_full, {_TABLES}, y_scale, y_zero_point) => (y) {{
        {DISENTANGLED_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    AddNormQuantize <epsilon> (x, residual, gamma, beta, smoothing, scale, zero_point) => (y, y_uint8) {{
        {_ADD_NORM_QUANTIZE}
    }}""",
)


def _in_bf16(source: str) -> str:
    """Return the function of a float function's name with `Bf16` before it, whose weight is bfloat16.

    Its kernel also rounds the operands of each matmul to bfloat16, which the body does not.
    """
    widened = source.replace("MatMul (x, weight)", "MatMul (x, wide)")
    if widened != source:
        widened = widened.replace("=> (y) {", "=> (y) {\n        wide = Cast <to = 1> (weight)")
    return re.sub(r">\n    (?=[A-Z])", r"\g<0>Bf16", widened, count=1)


def _parse(*sources: str) -> dict[str, ir.Function]:
    functions = (ir.serde.deserialize_function(onnx.parser.parse_function(source)) for source in sources)
    return {function.name: function for function in functions}


_BF16_FUNCTIONS = _parse(*map(_in_bf16, _FLOAT_SOURCES))

FUNCTIONS = (
    _parse(*_FLOAT_SOURCES, *_NORM_SOURCES, *_HEAD_SOURCES, *_ROW_SOURCES, *_QUANTIZED_SOURCES)
    | _BF16_FUNCTIONS
    | {KEEP_TOKENS.name: KEEP_TOKENS}
)
"""The functions, by name. Names, inputs and attributes are those of the kernels in `runtime/native`."""

BF16_FUNCTIONS: Mapping[str, ir.Function | None] = {**_BF16_FUNCTIONS, "Bf16VocabularyMax": None}
"""Functions with kernels that multiply in bfloat16; the body of `Bf16VocabularyMax` depends on the call, see
`bert_export.vocabulary_pooling`."""
