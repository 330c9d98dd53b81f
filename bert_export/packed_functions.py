"""Bodies of the ONNX functions on packed rows, in standard operators, see `bert_export.pack_rows`.

Packed rows [1, N, H] are those of a batch [B, S, H] without the rows behind each sequence's last token; a sequence has
at least one. An attention mask bool or int64 [B, S] says which they are.
"""

import re
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = [
    "FIRST_ROWS",
    "ROW_COUNTS",
    "ROW_OF_TOKEN",
    "UNPACK_ROWS",
    "on_packed_rows",
    "pack_lines",
    "unpack_lines",
]

ROW_COUNTS = """row_axis = Constant <value_ints = [1]> ()
        row_bools = Cast <to = 9> (mask)
        row_flags = Cast <to = 7> (row_bools)
        row_size = Shape <start = 1> (mask)
        row_end = Squeeze (row_size)
        row_start = Constant <value_int = 0> ()
        row_step = Constant <value_int = 1> ()
        row_places = Range (row_start, row_end, row_step)
        row_numbers = Add (row_places, row_step)
        row_ends = Mul (row_flags, row_numbers)
        row_last = ReduceMax <keepdims = 1> (row_ends, row_axis)
        row_counts = Max (row_last, row_step)
        row_starts = CumSum <exclusive = 1> (row_counts, row_start)
        row_batch_axis = Constant <value_ints = [0]> ()"""
"""The number of rows of each sequence, and its first packed row, int64 [B, 1], of a value `mask`.

ONNX Runtime computes them, and what follows, once for all layers."""

_TOKEN_OF_ROW = """row_stays = Less (row_places, row_counts)
        row_coordinates = NonZero (row_stays)
        token_of_row = Transpose (row_coordinates)"""
"""The sequence and the position of each packed row, int64 [N, 2]."""

ROW_OF_TOKEN = """row_last_places = Sub (row_counts, row_step)
        row_places_or_last = Min (row_places, row_last_places)
        row_of_token = Add (row_starts, row_places_or_last)"""
"""The packed row of each token, int64 [B, S]: of padding, the last one of its sequence."""


def _pack(value: str) -> str:
    return f"""rows_of_{value} = GatherND ({value}, token_of_row)
        packed_{value} = Unsqueeze (rows_of_{value}, row_batch_axis)"""


def unpack_lines(value: str) -> str:
    """Return the operators that make a value [B, S, H] of `packed_{value}` [1, N, H], after `ROW_OF_TOKEN`."""
    return f"""rows_of_{value} = Squeeze (packed_{value}, row_batch_axis)
        {value} = Gather (rows_of_{value}, row_of_token)"""


def pack_lines(values: Sequence[str]) -> list[str]:
    """Return the operators that make `packed_{value}` [1, N, H] of each value [B, S, H]."""
    return [ROW_COUNTS, _TOKEN_OF_ROW, *map(_pack, values)]


def on_packed_rows(source: str) -> str:
    """Return the source of a function that reads packed rows, of one that reads rows [B, S, H] and has a mask.

    Attention returns packed rows; pooling and attention of the first token return what they do without packing.
    """
    signature = re.search(r"\w+ (?:<[\w, ]+> )?\(([\w, ]+)\) => \((\w+)\) \{\n", source)
    assert signature is not None
    inputs, output = signature.groups()
    (read,) = {"qkv", "kv", "x"} & {*inputs.split(", ")}
    body = source[signature.end() :].rstrip().removesuffix("}").strip()
    head = re.sub(rf"\b{read}\b", f"packed_{read}", signature.group(0))
    lines = [ROW_COUNTS, ROW_OF_TOKEN, unpack_lines(read), body]
    if read == "qkv":
        head = head.replace(f"=> ({output})", f"=> (packed_{output})")
        lines += [_TOKEN_OF_ROW, _pack(output)]
    return source[: signature.start()] + head + "        " + "\n        ".join(lines) + "\n    }"


def _function(source: str) -> ir.Function:
    header = f'<domain: "{KERNEL_DOMAIN}", opset_import: ["": {OPSET}]>'
    return ir.serde.deserialize_function(onnx.parser.parse_function(f"{header}\n    {source}"))


FIRST_ROWS = _function(f"""FirstRows (mask) => (indices) {{
        {ROW_COUNTS}
        row_last_axis = Constant <value_ints = [-1]> ()
        row_columns = Unsqueeze (row_starts, row_last_axis)
        row_zeros = Mul (row_columns, row_start)
        indices = Concat <axis = -1> (row_zeros, row_columns)
    }}""")
"""mask [B, S] → the indices (0, row) of each sequence's first packed row, int64 [B, 1, 2]."""

UNPACK_ROWS = _function(f"""UnpackRows (packed_token, mask) => (y) {{
        {ROW_COUNTS}
        {ROW_OF_TOKEN}
        {unpack_lines("token")}
        row_stays = Less (row_places, row_counts)
        row_last_axis = Constant <value_ints = [-1]> ()
        row_is_token = Unsqueeze (row_stays, row_last_axis)
        row_zero = Constant <value_float = 0.0> ()
        y = Where (row_is_token, token, row_zero)
    }}""")
"""(packed rows float32 [1, N, H], mask [B, S]) → float32 [B, S, H], with zeros behind each sequence."""
