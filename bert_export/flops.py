"""Count the matrix-multiply FLOPs of a graph, and the share of them that runs in INT8."""

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from bert_export.fusion.prune_tokens import kept_percent
from bert_export.vocabulary_pooling import POOLING_FUNCTIONS
from bert_models.pruning_schedule import kept_tokens

__all__ = ["int8_flops_share", "matmul_flops"]

_SEQUENCE_TOKENS = 128
_INT8_MATMULS = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
_INT8_POOLINGS = tuple(name for name in POOLING_FUNCTIONS if name.startswith("Quantized"))


def matmul_flops(node: ir.Node, tokens: int) -> int:
    """Count the FLOPs of a matmul or Attention on one sequence; 0 for other operators.

    A multiply-add counts as 2.

    Args:
        node: the node; the shapes of its inputs and outputs must be known.
        tokens: length of the sequence.
    """
    if node.op_type in ("MatMul", "Gemm", *_INT8_MATMULS):
        *outer, _ = _sizes(node.outputs[0], tokens)
        return 2 * prod(outer) * prod(_sizes(node.inputs[1], tokens))
    if node.op_type in POOLING_FUNCTIONS:  # scores of the whole vocabulary, the weight's larger axis
        return 2 * tokens * prod(_sizes(node.inputs[1], tokens))
    if node.op_type == "Attention":  # scores = queries · keys, then scores · values
        query, key = (_sizes(value, tokens) for value in node.inputs[:2])
        return 4 * query[-2] * key[-2] * prod(size for i, size in enumerate(query) if i != len(query) - 2)
    return 0


def int8_flops_share(graph: ir.Model) -> float:
    """Return the share, from 0 to 1, of the matrix-multiply FLOPs on one sequence of 128 tokens that runs in INT8.

    The two matmuls inside Attention are included.
    """
    int8 = (*_INT8_MATMULS, *_INT8_POOLINGS)
    flops = [(node.op_type in int8, matmul_flops(node, _SEQUENCE_TOKENS)) for node in graph.graph]
    return sum(count for is_int8, count in flops if is_int8) / sum(count for _, count in flops)


def _sizes(value: ir.Value | None, tokens: int) -> list[int]:
    """Return a value's shape for a batch of one sequence with one mask token."""
    if value is None or value.shape is None:
        raise ValueError(f"the shape of {value.name if value is not None else 'an input'} is not known")
    sizes = {"batch": 1, "sequence": tokens, "masks": 1}
    return [size if isinstance(size, int) else _size(str(size), sizes) for size in value.shape]


def _size(axis: str, sizes: Mapping[str, int]) -> int:
    """Return the size of an axis; one of tokens that are left after others were pruned has a share of them."""
    if axis in sizes:
        return sizes[axis]
    return kept_tokens(sizes["sequence"], kept_percent(axis))
