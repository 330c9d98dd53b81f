"""Pack the tokens of all sequences of a CUDA graph: [T, H] instead of [B, S, H], without padding.

`RemovePadding` packs the real tokens before the first layer, `PackedMultiHeadAttention` attends within each sequence,
and `RestorePadding` brings [B, S, H] back where an operator needs to know which sequence a token is in: for the first
tokens of the last layer, for pooling, for the output. `PackedMultiHeadAttention` reads query, key and value by head,
[T, N, 3, H], and runs FlashAttention 2 unless it has a position bias to add; `PackedAttention`, which contains the
projection, would run cutlass' kernel (seen with onnxruntime-gpu 1.31.1 on stub CUDA libraries). All other operators
work on each token by itself and do not change. The three exist for CUDA alone and accept padding at the end of
sequences only. They need the number of tokens on the host, so a packed graph cannot be captured as a CUDA graph
(github.com/microsoft/onnxruntime, contrib_ops/cuda/bert).
"""

import numpy as np
import onnx_ir as ir

from bert_export.cuda.attention import MASK_INPUT, unmasked_bias
from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    NoMatch,
    add_initializer,
    check_counts,
    constant,
    graph_input,
    graph_of,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_models import EncoderConfig

__all__ = ["pack"]

_TOKENWISE = frozenset(
    (
        "Add", "BiasGelu", "Cast", "Concat", "FastGelu", "Gelu", "LayerNormalization", "MatMul", "Mul", "Relu",
        "SkipLayerNormalization", "Split", "Tanh",
    )
)  # fmt: skip
"""Operators that work on each token by itself if their other inputs are constant."""


def pack(graph: ir.Model, config: EncoderConfig) -> FusionCounts:
    """Pack a graph of `fuse_for_cuda`, in FP32 or FP16, in place and return the counts.

    Raises:
        FusionError: the attention of a layer could not be packed.
    """
    expected = {"packed_attention": config.num_layers}
    try:
        _Packing(graph, config).run()
    except NoMatch as reason:
        return check_counts({}, expected, [f"packed_attention: {reason}"])
    tidy(graph)
    return check_counts({"packed_attention": len(operators(graph, "PackedMultiHeadAttention"))}, expected, [])


class _Packing:
    """Packs a graph in one pass, in topological order."""

    def __init__(self, graph: ir.Model, config: EncoderConfig) -> None:
        self._graph = graph.graph
        self._embeddings, first = _find_embeddings(graph, config)
        mask = graph_input(self._graph, "attention_mask")
        if mask is None:
            raise NoMatch("expected an input attention_mask")
        axis = add_initializer(self._graph, "packed.axis", np.array([1], dtype=np.int64))
        (lengths,) = insert_before(
            first, "ReduceSum", [mask, axis], like=mask, shapes=[ir.Shape(["batch"])], attributes={"keepdims": 0}
        )
        (int32_lengths,) = insert_before(first, "Cast", [lengths], like=lengths, attributes={"to": ir.DataType.INT32})
        int32_lengths.type = ir.TensorType(ir.DataType.INT32)
        batch, sequence = ir.Shape(["batch_plus_one"]), ir.Shape(["batch", "sequence"])
        self._remove = ir.node(
            "RemovePadding",
            [self._embeddings, int32_lengths],
            domain=MICROSOFT_DOMAIN,
            outputs=[
                ir.Value(name="packed.tokens", shape=_packed_shape(self._embeddings), type=self._embeddings.type),
                ir.Value(name="packed.places", shape=sequence, type=ir.TensorType(ir.DataType.INT32)),
                ir.Value(name="packed.ends", shape=batch, type=ir.TensorType(ir.DataType.INT32)),
                ir.Value(name="packed.longest", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT32)),
            ],
        )
        self._graph.insert_before(first, self._remove)
        tokens, self._token_offsets, self._sequence_ends, _ = self._remove.outputs
        self._packed = {self._embeddings: tokens}
        """The packed value of each padded one, and of each value that has become packed itself."""
        self._restored: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Pack the nodes that can be packed, and restore the inputs of those that cannot."""
        nodes = list(self._graph)
        for node in nodes[nodes.index(self._remove) + 1 :]:
            if not any(value in self._packed for value in node.inputs):
                continue
            if node.op_type == "Attention" and node.inputs[0] in self._packed:
                self._pack_attention(node)
            elif self._is_tokenwise(node):
                self._pack_tokenwise(node)
            else:
                self._restore_inputs(node)
        for index, value in enumerate(self._graph.outputs):
            if value in self._packed:
                name, value.name = value.name, None
                self._graph.outputs[index] = self._padded(value, None)
                self._graph.outputs[index].name = name

    def _is_tokenwise(self, node: ir.Node) -> bool:
        """Return whether the node reads only packed values and constants that are the same for every token."""
        if node.op_type not in _TOKENWISE:
            return False
        others = [value for value in node.inputs if value is not None and value not in self._packed]
        if any(value.const_value is None for value in others):
            return False
        if node.op_type == "MatMul":
            return node.inputs[0] in self._packed and constant(node.inputs[1]).ndim == 2
        return node.op_type == "Split" or all(constant(value).ndim <= 1 for value in others)

    def _pack_tokenwise(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed:
                node.replace_input_with(index, self._packed[value])
        if "axis" in node.attributes:
            node.attributes["axis"] = ir.AttrInt64("axis", -1)  # [T, H] has one axis less
        for value in node.outputs:
            value.shape = _packed_shape(value)
            self._packed[value] = value

    def _pack_attention(self, node: ir.Node) -> None:
        """Project to [T, N, 3, H], which is separated by the kernel that adds the bias, and attend."""
        source, weight, bias = node.inputs[:3]
        assert source is not None
        assert weight is not None
        heads = node.attributes["num_heads"].as_int()
        head_weight = _interleave_heads(node, weight, heads)
        tokens = self._packed[source]
        position_bias = unmasked_bias(node.inputs[MASK_INPUT] if len(node.inputs) > MASK_INPUT else None)
        (product,) = insert_before(node, "MatMul", [tokens, head_weight], like=tokens, shapes=[None])
        by_head = _reshape(node, product, [0, heads, 3, -1])
        (output,) = insert_before(
            node,
            "PackedMultiHeadAttention",
            [by_head, None, None, bias, self._token_offsets, self._sequence_ends, *filter(None, [position_bias])],
            like=node.outputs[0],
            shapes=[_packed_shape(node.outputs[0])],
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            domain=MICROSOFT_DOMAIN,
        )
        node.outputs[0].replace_all_uses_with(output)
        self._packed[output] = output

    def _restore_inputs(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed and value is not self._embeddings:
                node.replace_input_with(index, self._padded(value, node))

    def _padded(self, value: ir.Value, anchor: ir.Node | None) -> ir.Value:
        """Restore a packed value to [B, S, …], with zeros as padding; `anchor` is the first node that reads it."""
        if value not in self._restored:
            shape = ir.Shape(["batch", "sequence", *list(value.shape or ())[1:]])
            node = ir.node(
                "RestorePadding",
                [value, self._token_offsets],
                domain=MICROSOFT_DOMAIN,
                outputs=[ir.Value(name=f"{value.name}.padded", shape=shape, type=value.type)],
            )
            if anchor is None:
                self._graph.append(node)
            else:
                self._graph.insert_before(anchor, node)
            self._restored[value] = node.outputs[0]
        return self._restored[value]


def _find_embeddings(graph: ir.Model, config: EncoderConfig) -> tuple[ir.Value, ir.Node]:
    """Return the input of the first layer, [B, S, H], and the first node that reads it."""
    for node in graph.graph:
        for value in node.inputs:
            if (
                scope(node).startswith("encoder.layers.")
                and value is not None
                and value.const_value is None
                and value.shape is not None
                and len(value.shape) == 3
                and value.shape[2] == config.hidden_size
            ):
                return value, node
    raise NoMatch(f"expected a layer that reads [B, S, {config.hidden_size}]")


def _packed_shape(value: ir.Value) -> ir.Shape:
    """Return the shape [T, H] of a value [B, S, H]."""
    if value.shape is None or len(value.shape) != 3:
        raise NoMatch(f"expected {value.name} to have three axes, found {value.shape}")
    return ir.Shape(["tokens", value.shape[2]])


def _interleave_heads(anchor: ir.Node, weight: ir.Value, heads: int) -> ir.Value:
    """Order the columns of a merged weight by head: [D, 3·N·H] → [D, N·3·H].

    The operators read a constant, so that ONNX Runtime computes their result once, as it opens the graph; the file
    holds no second copy of the weight.
    """
    (transposed,) = insert_before(
        anchor, "Transpose", [_reshape(anchor, weight, [0, 3, heads, -1])], like=weight, shapes=[None],
        attributes={"perm": [0, 2, 1, 3]},
    )  # fmt: skip
    return _reshape(anchor, transposed, [0, -1])


def _reshape(anchor: ir.Node, value: ir.Value, shape: list[int]) -> ir.Value:
    graph = graph_of(anchor)
    name = f"packed.shape.{'x'.join(map(str, shape))}"
    wanted = graph.initializers.get(name) or add_initializer(graph, name, np.array(shape, dtype=np.int64))
    (reshaped,) = insert_before(anchor, "Reshape", [value, wanted], like=value, shapes=[None])
    return reshaped
