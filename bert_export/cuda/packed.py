"""A graph for CUDA without padding: the tokens of all sequences in one row, [T, H] in the place of [B, S, H].

`RemovePadding` puts the real tokens together before the first layer, `PackedMultiHeadAttention` keeps each sequence to
itself, and `RestorePadding` brings back [B, S, H] where an operator needs to know which row a token is in: for the last
layer's first rows, for pooling, for the output. All others work on each token by itself and stay as they are. The three
exist for CUDA alone and read sequences that are padded at their end; they need the number of tokens on the host, and so
no packed graph can be captured as a CUDA graph (github.com/microsoft/onnxruntime, contrib_ops/cuda/bert).
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    MICROSOFT_DOMAIN,
    FusionCounts,
    NoMatch,
    add_initializer,
    check_counts,
    constant,
    insert_before,
    operators,
    scope,
    tidy,
)
from bert_models import EncoderConfig
from bert_runtime.tasks import Task

__all__ = ["pack"]

_TOKENWISE = frozenset(
    (
        "Add", "BiasGelu", "Cast", "FastGelu", "Gelu", "LayerNormalization", "MatMul", "Mul", "Relu",
        "SkipLayerNormalization", "Split", "Tanh",
    )
)  # fmt: skip
"""What may work on each token by itself, if all else that it reads is constant."""


def pack(model: ir.Model, config: EncoderConfig, task: Task) -> FusionCounts:
    """Rewrites a graph of `fuse_for_cuda`, also one in half precision, in place and returns the counts.

    Raises `FusionError` where not every layer's attention could be packed, but for a last layer of first rows alone.
    """
    expected = {"packed_attention": config.num_layers - int(task.reads_first_token_only)}
    try:
        _Packing(model, config).run()
    except NoMatch as reason:
        return check_counts({}, expected, [f"packed_attention: {reason}"])
    tidy(model)
    return check_counts({"packed_attention": len(operators(model, "PackedMultiHeadAttention"))}, expected, [])


class _Packing:
    """One pass over the graph, in topological order."""

    def __init__(self, model: ir.Model, config: EncoderConfig) -> None:
        self._graph = model.graph
        self._embedded, first = _embedded(model, config)
        mask = next((each for each in self._graph.inputs if each.name == "attention_mask"), None)
        if mask is None:
            raise NoMatch("expected an input attention_mask")
        axis = add_initializer(self._graph, "packed.axis", np.array([1], dtype=np.int64))
        (lengths,) = insert_before(
            first, "ReduceSum", [mask, axis], like=mask, shapes=[ir.Shape(["batch"])], attributes={"keepdims": 0}
        )
        (counts,) = insert_before(first, "Cast", [lengths], like=lengths, attributes={"to": ir.DataType.INT32})
        counts.type = ir.TensorType(ir.DataType.INT32)
        batch, sequence = ir.Shape(["batch_plus_one"]), ir.Shape(["batch", "sequence"])
        self._remove = ir.node(
            "RemovePadding",
            [self._embedded, counts],
            domain=MICROSOFT_DOMAIN,
            outputs=[
                ir.Value(name="packed.tokens", shape=_packed_shape(self._embedded), type=self._embedded.type),
                ir.Value(name="packed.places", shape=sequence, type=ir.TensorType(ir.DataType.INT32)),
                ir.Value(name="packed.ends", shape=batch, type=ir.TensorType(ir.DataType.INT32)),
                ir.Value(name="packed.longest", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT32)),
            ],
        )
        self._graph.insert_before(first, self._remove)
        tokens, self._places, self._ends, _ = self._remove.outputs
        self._packed = {self._embedded: tokens}
        """What is known in packed form: a padded value's packed one, or a value that became packed itself."""
        self._restored: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Packs what can be, and restores what cannot."""
        nodes = list(self._graph)
        for node in nodes[nodes.index(self._remove) + 1 :]:
            if not any(value in self._packed for value in node.inputs):
                continue
            if node.op_type == "MultiHeadAttention" and all(value in self._packed for value in node.inputs[:3]):
                self._attention(node)
            elif self._is_tokenwise(node):
                self._keep(node)
            else:
                self._restore(node)
        for index, value in enumerate(self._graph.outputs):
            if value in self._packed:
                name, value.name = value.name, None
                self._graph.outputs[index] = self._padded(value, None)
                self._graph.outputs[index].name = name

    def _is_tokenwise(self, node: ir.Node) -> bool:
        """Whether the node reads packed values and constants alone, of which each token has all."""
        if node.op_type not in _TOKENWISE:
            return False
        others = [value for value in node.inputs if value is not None and value not in self._packed]
        if any(value.const_value is None for value in others):
            return False
        if node.op_type == "MatMul":
            return node.inputs[0] in self._packed and constant(node.inputs[1]).ndim == 2
        return node.op_type == "Split" or all(constant(value).ndim <= 1 for value in others)

    def _keep(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed:
                node.replace_input_with(index, self._packed[value])
        if "axis" in node.attributes:
            node.attributes["axis"] = ir.AttrInt64("axis", -1)  # it was the last of three
        for value in node.outputs:
            value.shape = _packed_shape(value)
            self._packed[value] = value

    def _attention(self, node: ir.Node) -> None:
        inputs = [self._packed[value] for value in node.inputs[:3] if value is not None]
        (output,) = insert_before(
            node,
            "PackedMultiHeadAttention",
            [*inputs, None, self._places, self._ends],
            like=node.outputs[0],
            shapes=[_packed_shape(node.outputs[0])],
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            domain=MICROSOFT_DOMAIN,
        )
        node.outputs[0].replace_all_uses_with(output)
        self._packed[output] = output

    def _restore(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed and value is not self._embedded:
                node.replace_input_with(index, self._padded(value, node))

    def _padded(self, value: ir.Value, anchor: ir.Node | None) -> ir.Value:
        """A packed value as [B, S, …], with zeros at the padding; `anchor` is the first node to read it."""
        if value not in self._restored:
            shape = ir.Shape(["batch", "sequence", *list(value.shape or ())[1:]])
            node = ir.node(
                "RestorePadding",
                [value, self._places],
                domain=MICROSOFT_DOMAIN,
                outputs=[ir.Value(name=f"{value.name}.padded", shape=shape, type=value.type)],
            )
            if anchor is None:
                self._graph.append(node)
            else:
                self._graph.insert_before(anchor, node)
            self._restored[value] = node.outputs[0]
        return self._restored[value]


def _embedded(model: ir.Model, config: EncoderConfig) -> tuple[ir.Value, ir.Node]:
    """What the first layer reads, [B, S, H], and the first node that reads it."""
    for node in model.graph:
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
    """[B, S, H] as [T, H]."""
    if value.shape is None or len(value.shape) != 3:
        raise NoMatch(f"expected {value.name} to have three axes, found {value.shape}")
    return ir.Shape(["tokens", value.shape[2]])
