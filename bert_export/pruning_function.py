"""The ONNX function that chooses the tokens that stay, see `bert_models.token_pruning`."""

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_models.pruning_schedule import MIN_KEPT_TOKENS
from bert_models.relative_positions import MASKED_SCORE
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["KEEP_TOKENS"]

_IMPORTANCE = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        last_axis = Constant <value_ints = [-1]> ()
        first_query = Slice (query, zero, one, one)
        products = Mul (key, first_query)
        heads = Constant <value_int: int = @num_heads> ()
        num_heads = Reshape (heads, last_axis)
        head_shape = Concat <axis = 0> (zero, zero, num_heads, last_axis)
        by_head = Reshape (products, head_shape)
        sums = ReduceSum <keepdims = 0> (by_head, last_axis)
        scale = Constant <value_float: float = @scale> ()
        scores = Mul (sums, scale)
        mask_column = Unsqueeze (mask, two)
        masked_score = Constant <value_float = {MASKED_SCORE}> ()
        masked_scores = Where (mask_column, scores, masked_score)
        probabilities = Softmax <axis = 1> (masked_scores)
        attention = ReduceMean <keepdims = 0> (probabilities, last_axis)
        minus_one = Constant <value_float = -1.0> ()
        real = Where (mask, attention, minus_one)
        length = Shape <start = 1> (mask)
        tokens = Squeeze (length)
        start = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        positions = Range (start, tokens, step)
        is_first = Equal (positions, start)
        is_first_and_real = And (is_first, mask)
        above_one = Constant <value_float = 2.0> ()
        importance = Where (is_first_and_real, above_one, real)"""
"""The first token's attention [B, S], more at the first token, and less at padding."""

_COUNTS = f"""percentage = Constant <value_int: int = @percent> ()
        hundred = Constant <value_int = 100> ()
        almost_one = Constant <value_int = 99> ()
        few = Constant <value_int = {MIN_KEPT_TOKENS}> ()
        hundredths = Mul (lengths, percentage)
        rounded = Add (hundredths, almost_one)
        share = Div (rounded, hundred)
        short = Min (lengths, few)
        counts = Max (share, short, step)
        count = ReduceMax <keepdims = 1> (counts)
        width = Squeeze (count)"""
"""The number of tokens of each sequence that stay [B], and the largest of them."""

KEEP_TOKENS = ir.serde.deserialize_function(
    onnx.parser.parse_function(f"""<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}]>
    KeepTokens <num_heads, scale, percent> (qkv, mask, lengths) => (indices, kept_mask, attention_mask, is_full) {{
        {_IMPORTANCE}
        {_COUNTS}
        best, ranked = TopK <axis = 1> (importance, count)
        ranks = Range (start, width, step)
        counts_column = Unsqueeze (counts, one)
        stays = Less (ranks, counts_column)
        chosen = Where (stays, ranked, tokens)
        ordered, order = TopK <axis = 1, largest = 0> (chosen, count)
        is_kept = Less (ordered, tokens)
        last_position = Sub (tokens, step)
        clamped = Min (ordered, last_position)
        is_real = GatherElements <axis = 1> (mask, clamped)
        kept_mask = And (is_real, is_kept)
        indices = Unsqueeze (clamped, two)
        inner_axes = Constant <value_ints = [1, 2]> ()
        mask_row = Unsqueeze (kept_mask, inner_axes)
        batch = Shape <end = 1> (kept_mask)
        mask_shape = Concat <axis = 0> (batch, one, count, count)
        attention_mask = Expand (mask_row, mask_shape)
        numbers = Cast <to = 6> (kept_mask)
        minimum = ReduceMin <keepdims = 0> (numbers)
        is_full = Cast <to = 9> (minimum)
    }}""")
)
"""(qkv float32 [B, S, 3·H], mask bool [B, S], lengths int64 [B]) → (indices int64 [B, K, 1] of the tokens that stay,
whether they are real bool [B, K], the mask of attention among them bool [B, 1, K, K], whether all of it is true).
`lengths` are those before any pruning, of which `percent` stays."""
