"""The head of sparse embeddings in the graph: vocabulary scores of all tokens, pooled over each sequence's tokens.

The graph calls one function for it, for which there are native kernels: they keep the running maximum of each score
and store no scores at all. Everywhere else the function's body runs, in standard operators on one chunk of the
vocabulary after the other. So the scores of all tokens, [B, S, V], are never in memory as a whole.

Letters in shapes: B sequences, S tokens per sequence, V tokens of the vocabulary, E width of its embedding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from bert_export.capture import OPSET
from bert_export.onnx_graph import MICROSOFT_DOMAIN, insert_before, operators, replace_value, tidy
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

__all__ = [
    "FLOAT_POOLING_FUNCTIONS",
    "POOLING_FUNCTIONS",
    "chunk_vocabulary",
    "expand_vocabulary_pooling",
    "pooled_inputs",
    "vocabulary_function",
]

FLOAT_POOLING_FUNCTIONS = ("VocabularyMax", "VocabularySum")
"""The functions of FP32 graphs."""

POOLING_FUNCTIONS = (
    *FLOAT_POOLING_FUNCTIONS,
    "Bf16VocabularyMax",
    "QuantizedVocabularyMax",
    "QuantizedVocabularySum",
)
"""The functions. Inputs: x [B, S, E], weight, bias [V], attention mask int64 [B, S]; the quantized ones have those of
`QuantizedLinear` before the mask.

`VocabularyMax`: the maximum over the tokens of max(0, score), weight [V, E]. `VocabularySum`: the sum of log(1 + …) of
it, as often as the attribute `logarithms` says. Bf16: weight bfloat16 [V, E]. Quantized: weight int8 [E, V]."""

_CHUNK_SIZE = 2048
"""Tokens of the vocabulary per chunk of the functions' bodies."""


def chunk_vocabulary(vocab_size: int, chunk_size: int) -> list[tuple[int, int]]:
    """Divide a vocabulary evenly into chunks of at most `chunk_size` tokens: the first token of each, and its end."""
    count = -(-vocab_size // chunk_size)
    ends = [vocab_size * (index + 1) // count for index in range(count)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def pooled_inputs(graph: ir.Model) -> list[ir.Value]:
    """Return the values x [B, S, E] that the functions of an FP32 graph read."""
    calls = [call for name in FLOAT_POOLING_FUNCTIONS for call in operators(graph, name)]
    return [call.inputs[0] for call in calls if call.inputs[0] is not None]


def expand_vocabulary_pooling(graph: ir.Model) -> None:
    """Replace calls of the functions by their bodies, in place, for devices and tools that rewrite operators."""
    for name in POOLING_FUNCTIONS:
        for call in operators(graph, name):
            output = call.outputs[0]
            (pooled,) = _Body(call, output).build(call.inputs)
            replace_value(output, pooled)
        for identifier in [key for key in graph.functions if key[:2] == (KERNEL_DOMAIN, name)]:
            del graph.functions[identifier]
    tidy(graph)


def vocabulary_function(call: ir.Node) -> ir.Function:
    """Return the function that `call` calls: its body depends on the number of chunks."""
    inputs = [_copied(value) for value in call.inputs]
    copy = ir.node(call.op_type, inputs, {key: item.value for key, item in call.attributes.items()}, domain=call.domain)
    copy.outputs[0].type, copy.outputs[0].shape = call.outputs[0].type, call.outputs[0].shape
    body = ir.Graph(inputs, [], nodes=[copy], opset_imports={"": OPSET, MICROSOFT_DOMAIN: 1})
    body.outputs.extend(_Body(copy, copy.outputs[0]).build(inputs))
    body.remove(copy, safe=True)
    for number, value in enumerate(value for node in body for value in node.outputs):
        value.name = f"value_{number}"
    attributes = [ir.Attr(key, item.type, None) for key, item in call.attributes.items()]
    return ir.Function(call.domain, call.op_type, "", graph=body, attributes=attributes)


def _copied(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return ir.Value(name=f"{value.name}.in", shape=value.shape, type=value.type)


class _Body:
    """Inserts the standard operators of a call before it."""

    def __init__(self, call: ir.Node, output: ir.Value) -> None:
        self._call = call
        self._output = output
        self._quantized = call.op_type.startswith("Quantized")
        self._is_max = call.op_type.endswith("Max")
        self._logarithms = 0 if self._is_max else call.attributes["logarithms"].as_int()

    def build(self, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
        """Insert the operators, and return the output [B, V] in a list."""
        x, weight, *rest, mask = inputs
        assert x is not None
        assert x.shape is not None
        assert weight is not None
        assert weight.shape is not None
        self._mask_shape = self._insert("Shape", [mask], ir.Shape([2]), ir.DataType.INT64)
        mask_column = self._insert(
            "Unsqueeze", [mask, self._ints(-1)], ir.Shape(["batch", "sequence", 1]), ir.DataType.INT64
        )
        self._mask = self._insert("Cast", [mask_column], mask_column.shape, ir.DataType.FLOAT, to=ir.DataType.FLOAT)
        vocab_size, width = weight.shape[::-1] if self._quantized else weight.shape
        assert isinstance(vocab_size, int)
        assert isinstance(width, int)
        if not self._quantized:  # Gemm reads the embedding as it is stored, and takes matrices alone
            x = self._insert("Reshape", [x, self._ints(-1, width)], ir.Shape(["padded_tokens", width]))
            if weight.dtype == ir.DataType.BFLOAT16:
                weight = self._insert("Cast", [weight], weight.shape, to=ir.DataType.FLOAT)
        pooled = [self._chunk(x, weight, rest, *limits) for limits in chunk_vocabulary(vocab_size, _CHUNK_SIZE)]
        joined = pooled[0]
        if len(pooled) > 1:
            joined = self._insert("Concat", pooled, self._output.shape, axis=1)
        return [self._insert("Relu", [joined], self._output.shape) if self._is_max else joined]

    def _chunk(self, x: ir.Value, weight: ir.Value, rest: Sequence[ir.Value | None], start: int, end: int) -> ir.Value:
        """Score one chunk of the vocabulary at every token, and pool: [B, end - start]."""
        scores = (self._int8_scores if self._quantized else self._scores)(x, weight, rest, start, end)
        shape = ir.Shape(["batch", "sequence", end - start])
        if not self._is_max:
            scores = self._insert("Relu", [scores], shape)
            for _ in range(self._logarithms):
                one = self._constant(np.float32(1))
                scores = self._insert("Log", [self._insert("Add", [scores, one], shape)], shape)
        masked = self._insert("Mul", [scores, self._mask], shape)
        reduce = "ReduceMax" if self._is_max else "ReduceSum"
        return self._insert(reduce, [masked, self._ints(1)], ir.Shape(["batch", end - start]), keepdims=0)

    def _scores(self, x: ir.Value, weight: ir.Value, rest: Sequence[ir.Value | None], start: int, end: int) -> ir.Value:
        (bias,) = rest
        rows, biases = (self._slice(value, 0, start, end) for value in (weight, bias))
        flat = self._insert("Gemm", [x, rows, biases], ir.Shape(["padded_tokens", end - start]), transB=1)
        by_sequence = self._insert(
            "Concat", [self._mask_shape, self._ints(end - start)], ir.Shape([3]), ir.DataType.INT64, axis=0
        )
        return self._insert("Reshape", [flat, by_sequence], ir.Shape(["batch", "sequence", end - start]))

    def _int8_scores(
        self, x: ir.Value, weight: ir.Value, rest: Sequence[ir.Value | None], start: int, end: int
    ) -> ir.Value:
        x_scale, scales, zero_point, bias = rest
        columns = self._slice(weight, 1, start, end)
        scale, biases = (self._slice(value, 0, start, end) for value in (scales, bias))
        shape = ir.Shape(["batch", "sequence", end - start])
        inputs = [x, columns, x_scale, scale, zero_point, None, biases]
        return self._insert("MatMulIntegerToFloat", inputs, shape, domain=MICROSOFT_DOMAIN)

    def _slice(self, value: ir.Value | None, axis: int, start: int, end: int) -> ir.Value:
        """Return a part of a constant; ONNX Runtime computes it once, as it opens the graph."""
        assert value is not None
        assert value.shape is not None
        sizes = list(value.shape)
        if (start, end) == (0, sizes[axis]):
            return value
        sizes[axis] = end - start
        return self._insert(
            "Slice", [value, self._ints(start), self._ints(end), self._ints(axis)], ir.Shape(sizes), value.dtype
        )

    def _ints(self, *values: int) -> ir.Value:
        return self._constant(np.array(values, dtype=np.int64))

    def _constant(self, array: Any) -> ir.Value:
        tensor = ir.tensor(array)
        return self._insert("Constant", [], ir.Shape(array.shape), tensor.dtype, value=tensor)

    def _insert(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: ir.Shape | None,
        dtype: ir.DataType | None = ir.DataType.FLOAT,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        like = ir.Value(type=None if dtype is None else ir.TensorType(dtype))
        (output,) = insert_before(
            self._call, op_type, inputs, like=like, attributes=attributes, shapes=[shape], domain=domain
        )
        return output
