"""A packed graph in operators that run anywhere: only the three that were replaced remain to be tried on a GPU."""

from typing import Any

import numpy as np
import onnx_ir as ir

from bert_export.cuda.fusion import MASKED_SCORE
from bert_export.onnx_graph import MICROSOFT_DOMAIN, add_initializer, insert_before, operators, tidy

__all__ = ["decompose_packed_ops"]


def decompose_packed_ops(model: ir.Model) -> ir.Model:
    """A copy with the operators that CUDA alone has spelled out in ones that run anywhere: the proof of its wiring."""
    spelled = model.clone()
    (remove,) = operators(spelled, "RemovePadding")
    rows = _Rows(remove)
    remove.outputs[0].replace_all_uses_with(rows.packed(remove, remove.inputs[0]))
    for node in operators(spelled, "PackedMultiHeadAttention"):
        parts = [rows.padded(node, value) for value in node.inputs[:3]]
        (output,) = insert_before(
            node, "MultiHeadAttention", [*parts, None, None, rows.bias(node)], like=parts[0],
            attributes={name: attribute.value for name, attribute in node.attributes.items()}, domain=MICROSOFT_DOMAIN,
        )  # fmt: skip
        node.outputs[0].replace_all_uses_with(rows.packed(node, output))
    for node in operators(spelled, "RestorePadding"):
        padded = rows.padded(node, node.inputs[0])
        for index, output in enumerate(spelled.graph.outputs):
            if output is node.outputs[0]:
                padded.name, padded.shape = output.name, output.shape
                output.name = None
                spelled.graph.outputs[index] = padded
        node.outputs[0].replace_all_uses_with(padded)
    tidy(spelled)
    return spelled


class _Rows:
    """Where real tokens are in [B, S], spelled out before a `RemovePadding`."""

    def __init__(self, remove: ir.Node) -> None:
        source, counts = remove.inputs
        self._graph = remove.graph
        self._shape = self._add(remove, "Shape", [source], ir.DataType.INT64)
        length = self._add(remove, "Gather", [self._shape, self._number(1)], ir.DataType.INT64)
        places = self._add(remove, "Range", [self._number(0), length, self._number(1)], ir.DataType.INT64)
        counts = self._add(remove, "Cast", [counts], ir.DataType.INT64, to=ir.DataType.INT64)
        ends = self._add(remove, "Unsqueeze", [counts, self._number([1])], ir.DataType.INT64)
        self._real = self._add(remove, "Less", [places, ends], ir.DataType.BOOL)
        found = self._add(remove, "NonZero", [self._real], ir.DataType.INT64)
        self._indices = self._add(remove, "Transpose", [found], ir.DataType.INT64, perm=[1, 0])

    def packed(self, anchor: ir.Node, value: ir.Value | None) -> ir.Value:
        """[B, S, H] as [T, H]."""
        assert value is not None
        assert value.dtype is not None
        return self._add(anchor, "GatherND", [value, self._indices], value.dtype)

    def padded(self, anchor: ir.Node, value: ir.Value | None) -> ir.Value:
        """[T, H] as [B, S, H]."""
        assert value is not None
        assert value.dtype is not None
        width = self._add(anchor, "Shape", [value], ir.DataType.INT64, start=1)
        rows = self._add(anchor, "Slice", [self._shape, self._number([0]), self._number([2])], ir.DataType.INT64)
        shape = self._add(anchor, "Concat", [rows, width], ir.DataType.INT64, axis=0)
        zero = ir.tensor(np.zeros(1, dtype=value.dtype.numpy()))
        zeros = self._add(anchor, "ConstantOfShape", [shape], value.dtype, value=zero)
        return self._add(anchor, "ScatterND", [zeros, self._indices, value], value.dtype)

    def bias(self, anchor: ir.Node) -> ir.Value:
        """What is added to attention's scores [B, 1, S, S], in the type of what the node at `anchor` reads."""
        dtype = anchor.inputs[0].dtype if anchor.inputs[0] is not None else None
        assert dtype is not None
        kept, masked = (self._number(np.array(each, dtype=dtype.numpy())) for each in (0.0, MASKED_SCORE))
        bias = self._add(anchor, "Where", [self._real, kept, masked], dtype)
        bias = self._add(anchor, "Unsqueeze", [bias, self._number([1, 2])], dtype)
        length = self._add(anchor, "Slice", [self._shape, self._number([1]), self._number([2])], ir.DataType.INT64)
        one = self._number([1])
        shape = self._add(anchor, "Concat", [one, one, length, one], ir.DataType.INT64, axis=0)
        return self._add(anchor, "Expand", [bias, shape], dtype)

    def _number(self, value: Any) -> ir.Value:
        assert isinstance(self._graph, ir.Graph)
        return add_initializer(self._graph, "spelled", np.asarray(value))

    def _add(
        self, anchor: ir.Node, op_type: str, inputs: list[ir.Value | None], dtype: ir.DataType, **attributes: Any
    ) -> ir.Value:
        like = ir.Value(type=ir.TensorType(dtype))
        return insert_before(anchor, op_type, inputs, like=like, attributes=attributes)[0]
