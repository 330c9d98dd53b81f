"""ONNX functions for which the runtime has native kernels, see `bert_export.outline_kernels`.

A function of an ONNX model defines in standard operators what it computes. ONNX Runtime runs a kernel of that name
where the session has one (`bert_runtime.cpu.native_kernels`), and inlines the function's body everywhere else. So a
bundle needs no kernel, and a kernel fuses the element-wise operators between two matmuls into one pass.
"""

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_export.onnx_graph import MICROSOFT_DOMAIN
from bert_models.relative_positions import MASKED_SCORE
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["FUNCTIONS"]

_HEADER = f'<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}, "{MICROSOFT_DOMAIN}": 1]>'

_INT8_MATMUL = f"{MICROSOFT_DOMAIN}.MatMulIntegerToFloat (x, weight, x_scale, scales, x_zero_point, , bias)"

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
"""Attention of merged projections, with the branch of `add_padding_branch`."""

_RELATIVE_ATTENTION = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        length = Shape <start = 3> (mask)
        tokens = Squeeze (length)
        keys = Range (zero, tokens, one)
        axis = Constant <value_ints = [1]> ()
        queries = Unsqueeze (keys, axis)
        distances = Sub (keys, queries)
        from_one = Add (distances, tokens)
        indices = Sub (from_one, one)
        scores = Gather <axis = 1> (bias, indices)
        masked_score = Constant <value_float = {MASKED_SCORE}> ()
        masked = Where (mask, scores, masked_score)
        attended = Attention <q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads,
            scale: float = @scale> (query, key, value, masked)"""
"""Attention of merged projections, with a bias [A, 2S - 1] for the distance from query to key.

ONNX Runtime expands the bias once for all layers, where it inlines several."""

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
    RelativeAttention <num_heads, scale> (qkv, mask, is_full, bias) => (attended) {{
        {_RELATIVE_ATTENTION}
    }}""",
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
        {_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    QuantizedRelativeAttention <num_heads, scale> (qkv, mask, is_full, bias, y_scale, y_zero_point) => (y) {{
        {_RELATIVE_ATTENTION}
        y = QuantizeLinear (attended, y_scale, y_zero_point)
    }}""",
    f"""{_HEADER}
    AddNormQuantize <epsilon> (x, residual, gamma, beta, smoothing, scale, zero_point) => (y, y_uint8) {{
        sum = Add (x, residual)
        y = LayerNormalization <axis = -1, epsilon: float = @epsilon> (sum, gamma, beta)
        smoothed = Mul (y, smoothing)
        y_uint8 = QuantizeLinear (smoothed, scale, zero_point)
    }}""",
)

FUNCTIONS = {
    function.name: function
    for function in (ir.serde.deserialize_function(onnx.parser.parse_function(source)) for source in _SOURCES)
}
"""The functions, by name. Names, inputs and attributes are those of the kernels in `runtime/native`."""
