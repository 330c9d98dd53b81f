"""Decompose a packed graph's CUDA-only operators, so that its wiring can be verified on a machine without a GPU.

Only the three operators that are replaced, `RemovePadding`, `PackedMultiHeadAttention` and `RestorePadding`, then
remain to be tried on a GPU.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from bert_export.cuda.attention import CUDA_MASKED_SCORE
from bert_export.onnx_graph import MICROSOFT_DOMAIN, add_initializer, graph_of, insert_before, operators, tidy

__all__ = ["decompose_packed_ops"]

_POSITION_BIAS_INPUT = 6
"""Index of the position bias among the inputs of `PackedMultiHeadAttention`."""


def decompose_packed_ops(graph: ir.Model) -> ir.Model:
    """Return a copy of a graph of `pack` in which operators that exist on the CPU replace the packing ones."""
    decomposed = graph.clone()
    (remove,) = operators(decomposed, "RemovePadding")
    tokens = _TokenIndices(remove)
    remove.outputs[0].replace_all_uses_with(tokens.pack(remove, remove.inputs[0]))
    for node in operators(decomposed, "PackedMultiHeadAttention"):
        operands = tokens.separate(node, tokens.pad(node, node.inputs[0]))
        (output,) = insert_before(
            node, "MultiHeadAttention", [*operands, node.inputs[3], None, tokens.attention_bias(node)],
            like=node.outputs[0], shapes=[None],
            attributes={name: attribute.value for name, attribute in node.attributes.items()}, domain=MICROSOFT_DOMAIN,
        )  # fmt: skip
        node.outputs[0].replace_all_uses_with(tokens.pack(node, output))
    for node in operators(decomposed, "RestorePadding"):
        padded = tokens.pad(node, node.inputs[0])
        for index, output in enumerate(decomposed.graph.outputs):
            if output is node.outputs[0]:
                padded.name, padded.shape = output.name, output.shape
                output.name = None
                decomposed.graph.outputs[index] = padded
        node.outputs[0].replace_all_uses_with(padded)
    tidy(decomposed)
    return decomposed


class _TokenIndices:
    """The indices [T, 2] of the real tokens in [B, S], computed before a `RemovePadding`."""

    def __init__(self, remove: ir.Node) -> None:
        source, lengths = remove.inputs
        self._graph = graph_of(remove)
        self._shape = self._add(remove, "Shape", [source], ir.DataType.INT64)
        max_length = self._add(remove, "Gather", [self._shape, self._constant(1)], ir.DataType.INT64)
        positions = self._add(remove, "Range", [self._constant(0), max_length, self._constant(1)], ir.DataType.INT64)
        lengths = self._add(remove, "Cast", [lengths], ir.DataType.INT64, to=ir.DataType.INT64)
        ends = self._add(remove, "Unsqueeze", [lengths, self._constant([1])], ir.DataType.INT64)
        self._is_token = self._add(remove, "Less", [positions, ends], ir.DataType.BOOL)
        found = self._add(remove, "NonZero", [self._is_token], ir.DataType.INT64)
        self._indices = self._add(remove, "Transpose", [found], ir.DataType.INT64, perm=[1, 0])

    def pack(self, anchor: ir.Node, value: ir.Value | None) -> ir.Value:
        """Gather the real tokens: [B, S, …] → [T, …]."""
        assert value is not None
        assert value.dtype is not None
        return self._add(anchor, "GatherND", [value, self._indices], value.dtype)

    def pad(self, anchor: ir.Node, value: ir.Value | None) -> ir.Value:
        """Scatter the tokens, with zeros as padding: [T, …] → [B, S, …]."""
        assert value is not None
        assert value.dtype is not None
        width = self._add(anchor, "Shape", [value], ir.DataType.INT64, start=1)
        batch = self._add(anchor, "Slice", [self._shape, self._constant([0]), self._constant([2])], ir.DataType.INT64)
        shape = self._add(anchor, "Concat", [batch, width], ir.DataType.INT64, axis=0)
        zero = ir.tensor(np.zeros(1, dtype=value.dtype.numpy()))
        zeros = self._add(anchor, "ConstantOfShape", [shape], value.dtype, value=zero)
        return self._add(anchor, "ScatterND", [zeros, self._indices, value], value.dtype)

    def separate(self, anchor: ir.Node, value: ir.Value) -> list[ir.Value]:
        """Separate query, key and value: [B, S, N, 3, H] → 3 × [B, S, N·H]; the CPU's attention takes no other."""
        assert value.dtype is not None
        parts = insert_before(
            anchor, "Split", [value, self._constant([1, 1, 1])], like=[value] * 3, shapes=[None] * 3,
            attributes={"axis": 3},
        )  # fmt: skip
        return [self._add(anchor, "Reshape", [part, self._constant([0, 0, -1])], value.dtype) for part in parts]

    def attention_bias(self, anchor: ir.Node) -> ir.Value:
        """Return what is added to the scores [B, 1 or A, S, S], in the dtype of `anchor`'s inputs."""
        dtype = anchor.inputs[0].dtype if anchor.inputs[0] is not None else None
        assert dtype is not None
        kept, masked = (self._constant(np.array(score, dtype=dtype.numpy())) for score in (0.0, CUDA_MASKED_SCORE))
        if len(anchor.inputs) > _POSITION_BIAS_INPUT:
            is_token = self._add(anchor, "Unsqueeze", [self._is_token, self._constant([1, 2])], ir.DataType.BOOL)
            return self._add(anchor, "Where", [is_token, anchor.inputs[_POSITION_BIAS_INPUT], masked], dtype)
        bias = self._add(anchor, "Where", [self._is_token, kept, masked], dtype)
        bias = self._add(anchor, "Unsqueeze", [bias, self._constant([1, 2])], dtype)
        length = self._add(anchor, "Slice", [self._shape, self._constant([1]), self._constant([2])], ir.DataType.INT64)
        one = self._constant([1])
        shape = self._add(anchor, "Concat", [one, one, length, one], ir.DataType.INT64, axis=0)
        return self._add(anchor, "Expand", [bias, shape], dtype)

    def _constant(self, value: Any) -> ir.Value:
        return add_initializer(self._graph, "decomposed", np.asarray(value))

    def _add(
        self, anchor: ir.Node, op_type: str, inputs: list[ir.Value | None], dtype: ir.DataType, **attributes: Any
    ) -> ir.Value:
        like = ir.Value(type=ir.TensorType(dtype))
        return insert_before(anchor, op_type, inputs, like=like, attributes=attributes)[0]
