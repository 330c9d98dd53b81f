"""How much of a graph's matrix arithmetic runs in which precision."""

from math import prod

import onnx_ir as ir

__all__ = ["int8_flops_share", "matmul_flops"]

_INT8_OPERATORS = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")


def matmul_flops(node: ir.Node, tokens: int) -> int:
    """FLOPs of a matrix product on one sequence of `tokens` tokens (a multiply-add is 2); 0 for other operators."""
    if node.op_type in ("MatMul", "Gemm", *_INT8_OPERATORS):
        rows = _sizes(node.outputs[0], tokens)[:-1]
        return 2 * prod(rows) * prod(_sizes(node.inputs[1], tokens))
    if node.op_type == "Attention":  # queries by keys, then weights by values
        query, key = (_sizes(value, tokens) for value in node.inputs[:2])
        return 4 * query[-2] * key[-2] * prod(size for i, size in enumerate(query) if i != len(query) - 2)
    return 0


def int8_flops_share(model: ir.Model, tokens: int = 128) -> float:
    """Share of all matrix-multiply FLOPs at `tokens` tokens that run in INT8, attention's own products included."""
    flops = [(node.op_type in _INT8_OPERATORS, matmul_flops(node, tokens)) for node in model.graph]
    return sum(count for int8, count in flops if int8) / sum(count for _, count in flops)


def _sizes(value: ir.Value | None, tokens: int) -> list[int]:
    """A value's shape with one sequence, of one mask, in the batch."""
    if value is None or value.shape is None:
        raise ValueError(f"the shape of {value.name if value is not None else 'an input'} is not known")
    names = {"batch": 1, "sequence": tokens, "masks": 1}
    return [size if isinstance(size, int) else names[str(size)] for size in value.shape]
