"""The ONNX function of disentangled attention's position scores, see `bert_models.disentangled_attention`.

Each query is multiplied by the projected positions of all distances from it that there are, and each key likewise. The
product for a distance is where query and key meet after row i is shifted by i, which is a Reshape to rows that are one
element shorter. So no index and no embedding exists for every pair of query and key.
"""

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_models.relative_positions import MASKED_SCORE
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = ["POSITION_SCORES", "POSITION_SCORES_BODY", "POSITION_TABLES"]

POSITION_TABLES = ("position_keys", "position_queries", "key_indices", "query_indices")
"""Constant inputs of the function: positions as keys and as queries, [A, 2P, D] each and scaled like the scores, and
which of them belongs to each distance from key to query, from M - 1 down to -M and from 1 - M up to M, for up to M
tokens."""


def _shift(name: str, products: str, *, num: str, num_others: str) -> str:
    """Return operators that shift row i of products by i, so that a column is no distance, but one of the others.

    Args:
        name: prefix of the values; that with the suffix `_scores`, [B, A, num, num_others], is the result.
        products: value with a row per token and a column per distance.
        num: value with the number of tokens.
        num_others: value with the number of tokens that they are compared with.
    """
    return f"""flat_{products} = Reshape ({products}, flat)
        {name}_start = Sub ({num}, axis)
        {name}_size = Mul ({num}, row)
        {name}_end = Add ({name}_start, {name}_size)
        {name}_rows = Slice (flat_{products}, {name}_start, {name}_end, two)
        {name}_shape = Concat <axis = 0> (zero, zero, {num}, row)
        {name}_shifted = Reshape ({name}_rows, {name}_shape)
        {name}_scores = Slice ({name}_shifted, zero, {num_others}, three)"""


POSITION_SCORES_BODY = f"""axis = Constant <value_ints = [1]> ()
        zero = Constant <value_ints = [0]> ()
        two = Constant <value_ints = [2]> ()
        three = Constant <value_ints = [3]> ()
        rest = Constant <value_ints = [-1]> ()
        num_queries = Shape <start = 1, end = 2> (query)
        num_keys = Shape <start = 1, end = 2> (key)
        length = Shape (key_indices)
        max_tokens = Div (length, two)
        first_for_keys = Sub (max_tokens, num_queries)
        end_for_keys = Add (max_tokens, num_keys)
        first_for_queries = Sub (max_tokens, num_keys)
        end_for_queries = Add (max_tokens, num_queries)
        used_for_keys = Slice (key_indices, first_for_keys, end_for_keys)
        used_for_queries = Slice (query_indices, first_for_queries, end_for_queries)
        keys_by_distance = Gather <axis = 1> (position_keys, used_for_keys)
        queries_by_distance = Gather <axis = 1> (position_queries, used_for_queries)
        key_columns = Transpose <perm = [0, 2, 1]> (keys_by_distance)
        query_columns = Transpose <perm = [0, 2, 1]> (queries_by_distance)
        heads = Constant <value_int: int = @num_heads> ()
        num_heads = Reshape (heads, rest)
        split = Concat <axis = 0> (zero, zero, num_heads, rest)
        query_tokens = Reshape (query, split)
        key_tokens = Reshape (key, split)
        query_heads = Transpose <perm = [0, 2, 1, 3]> (query_tokens)
        key_heads = Transpose <perm = [0, 2, 1, 3]> (key_tokens)
        by_query = MatMul (query_heads, key_columns)
        by_key = MatMul (key_heads, query_columns)
        width = Add (num_queries, num_keys)
        row = Sub (width, axis)
        flat = Concat <axis = 0> (zero, zero, rest)
        {_shift("query", "by_query", num="num_queries", num_others="num_keys")}
        {_shift("key", "by_key", num="num_keys", num_others="num_queries")}
        key_scores_by_query = Transpose <perm = [0, 1, 3, 2]> (key_scores)
        unmasked = Add (query_scores, key_scores_by_query)
        masked_score = Constant <value_float = {MASKED_SCORE}> ()
        scores = Where (mask, unmasked, masked_score)"""
"""Q queries are the first ones of S keys: query [B, Q, H], key [B, S, H], mask [B, 1, Q, S] → scores [B, A, Q, S]."""

POSITION_SCORES = ir.serde.deserialize_function(
    onnx.parser.parse_function(f"""<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}]>
    PositionScores <num_heads> (query, key, mask, {", ".join(POSITION_TABLES)}) => (scores) {{
        {POSITION_SCORES_BODY}
    }}""")
)
