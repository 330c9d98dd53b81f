"""Bodies of the ONNX functions of attention, in standard operators, see `bert_export.kernel_functions`.

Each reads `qkv`, merged projections, and ends in a value `attended`.
"""

from bert_export.position_functions import POSITION_SCORES_BODY
from bert_models.relative_positions import MASKED_SCORE

__all__ = [
    "ATTENTION",
    "DISENTANGLED_ATTENTION",
    "FIRST_TOKEN_ATTENTION",
    "LOCAL_ATTENTION",
    "RELATIVE_ATTENTION",
    "ROTARY_ATTENTION",
]

_ATTENTION = "Attention <q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads, scale: float = @scale>"
"""The operator with the number of heads and the scale of the function's call."""

_KEY_MASK = """batch = Shape <end = 1> (mask)
        tokens_of_mask = Shape <start = -1> (mask)
        one = Constant <value_ints = [1]> ()
        all_rows = Constant <value_ints = [-1]> ()
        rows_of_mask = Concat <axis = 0> (batch, one, all_rows, tokens_of_mask)
        by_head = Reshape (mask, rows_of_mask)
        attends = Cast <to = 9> (by_head)"""
"""Whether queries attend to keys, bool [B, 1, 1 or S, S], from a mask of bools or numbers [B, S] or [B, 1, S, S].

It is the same for all layers, and ONNX Runtime computes it once where it inlines several."""

_IS_FULL = """numbers = Cast <to = 6> (attends)
        minimum = ReduceMin <keepdims = 0> (numbers)
        has_no_padding = Cast <to = 9> (minimum)"""

ATTENTION = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        {_KEY_MASK}
        {_IS_FULL}
        square = Concat <axis = 0> (one, one, tokens_of_mask, tokens_of_mask)
        full_mask = Expand (attends, square)
        attended = If (has_no_padding) <
            then_branch = unmasked () => (float[batch, tokens, width] unmasked_y) {{
                unmasked_y = {_ATTENTION} (query, key, value)
            }},
            else_branch = masked () => (float[batch, tokens, width] masked_y) {{
                masked_y = {_ATTENTION} (query, key, value, full_mask)
            }}>"""
"""Attention of merged projections, with the branch of `add_padding_branch`."""

FIRST_TOKEN_ATTENTION = f"""key, value = Split <axis = -1, num_outputs = 2> (kv)
        {_KEY_MASK}
        attended = {_ATTENTION} (query, key, value, attends)"""
"""Attention of one query in each sequence to merged keys and values."""

RELATIVE_ATTENTION = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        {_KEY_MASK}
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        tokens = Squeeze (tokens_of_mask)
        keys = Range (first, tokens, step)
        queries = Unsqueeze (keys, one)
        distances = Sub (keys, queries)
        from_one = Add (distances, tokens)
        indices = Sub (from_one, step)
        scores = Gather <axis = 1> (bias, indices)
        masked_score = Constant <value_float = {MASKED_SCORE}> ()
        masked = Where (attends, scores, masked_score)
        attended = {_ATTENTION} (query, key, value, masked)"""
"""Attention of merged projections, with a bias [A, 2S - 1] for the distance from query to key.

ONNX Runtime expands the bias once for all layers, where it inlines several."""

_ROTATE = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        {_KEY_MASK}
        shape = Shape (mask)
        tokens = Squeeze (tokens_of_mask)
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        range = Range (first, tokens, step)
        positions = Expand (range, shape)
        q = RotaryEmbedding <num_heads: int = @num_heads> (query, cos, sin, positions)
        k = RotaryEmbedding <num_heads: int = @num_heads> (key, cos, sin, positions)"""
"""Rotated queries and keys of merged projections; the mask is [B, S], and the positions are computed once for all
layers."""

ROTARY_ATTENTION = f"""{_ROTATE}
        {_IS_FULL}
        attended = If (has_no_padding) <
            then_branch = unmasked () => (float[batch, tokens, width] unmasked_y) {{
                unmasked_y = {_ATTENTION} (q, k, value)
            }},
            else_branch = masked () => (float[batch, tokens, width] masked_y) {{
                square = Concat <axis = 0> (one, one, tokens_of_mask, tokens_of_mask)
                full_mask = Expand (attends, square)
                masked_y = {_ATTENTION} (q, k, value, full_mask)
            }}>"""

LOCAL_ATTENTION = f"""{_ROTATE}
        nothing = Constant <value_ints = [0]> ()
        single = Constant <value_ints = [1]> ()
        fill = Constant <value_ints = [-1]> ()
        window = Constant <value_int: int = @window> ()
        block = Unsqueeze (window, nothing)
        two_blocks = Add (block, block)
        last = Sub (block, single)
        up = Add (tokens_of_mask, last)
        blocks = Div (up, block)
        whole = Mul (blocks, block)
        missing = Sub (whole, tokens_of_mask)
        missing_keys = Add (missing, block)
        query_pads = Concat <axis = 0> (nothing, nothing, nothing, nothing, missing, nothing)
        key_pads = Concat <axis = 0> (nothing, block, nothing, nothing, missing_keys, nothing)
        mask_pads = Concat <axis = 0> (nothing, block, nothing, missing_keys)
        block_shape = Concat <axis = 0> (fill, block, nothing)
        mask_shape = Concat <axis = 0> (fill, block)
        padded_q = Pad (q, query_pads)
        padded_k = Pad (k, key_pads)
        padded_v = Pad (value, key_pads)
        bytes = Cast <to = 2> (mask)
        padded_mask = Pad (bytes, mask_pads)
        after = Add (whole, block)
        end = Add (after, block)
        k_before = Slice (padded_k, nothing, whole, single)
        k_inside = Slice (padded_k, block, after, single)
        k_behind = Slice (padded_k, two_blocks, end, single)
        v_before = Slice (padded_v, nothing, whole, single)
        v_inside = Slice (padded_v, block, after, single)
        v_behind = Slice (padded_v, two_blocks, end, single)
        mask_before = Slice (padded_mask, nothing, whole, single)
        mask_inside = Slice (padded_mask, block, after, single)
        mask_behind = Slice (padded_mask, two_blocks, end, single)
        q_blocks = Reshape (padded_q, block_shape)
        k_0 = Reshape (k_before, block_shape)
        k_1 = Reshape (k_inside, block_shape)
        k_2 = Reshape (k_behind, block_shape)
        v_0 = Reshape (v_before, block_shape)
        v_1 = Reshape (v_inside, block_shape)
        v_2 = Reshape (v_behind, block_shape)
        mask_0 = Reshape (mask_before, mask_shape)
        mask_1 = Reshape (mask_inside, mask_shape)
        mask_2 = Reshape (mask_behind, mask_shape)
        k_blocks = Concat <axis = 1> (k_0, k_1, k_2)
        v_blocks = Concat <axis = 1> (v_0, v_1, v_2)
        mask_bytes = Concat <axis = 1> (mask_0, mask_1, mask_2)
        mask_rows = Cast <to = 9> (mask_bytes)
        axes = Constant <value_ints = [1, 2]> ()
        key_mask = Unsqueeze (mask_rows, axes)
        in_block = Range (first, window, step)
        query_places = Unsqueeze (in_block, single)
        three_blocks = Add (two_blocks, block)
        num_keys = Squeeze (three_blocks)
        key_places = Range (first, num_keys, step)
        ahead = Sub (key_places, query_places)
        distances = Sub (ahead, window)
        sizes = Abs (distances)
        near = LessOrEqual (sizes, window)
        block_mask = And (key_mask, near)
        y_blocks = {_ATTENTION} (q_blocks, k_blocks, v_blocks, block_mask)
        first_size = Shape <end = 1> (mask)
        y_shape = Concat <axis = 0> (first_size, fill, nothing)
        y_padded = Reshape (y_blocks, y_shape)
        attended = Slice (y_padded, nothing, tokens_of_mask, single)"""
"""Attention to keys within a window W, in blocks of W queries, each with the 3·W keys of its block and its neighbours:

    keys      [ W before ][ W inside ][ W behind ]     a block of queries is inside; what is beyond the window, and
    queries               [ W inside ]                 what the mask leaves out, is masked: [blocks, 1, W, 3·W]
"""

DISENTANGLED_ATTENTION = f"""query, key, value = Split <axis = -1, num_outputs = 3> (qkv)
        {_KEY_MASK}
        {POSITION_SCORES_BODY.replace("Where (mask,", "Where (attends,")}
        attended = {_ATTENTION} (query, key, value, scores)"""
"""Attention of merged projections, with scores of relative positions."""
