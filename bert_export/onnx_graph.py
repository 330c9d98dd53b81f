"""Read and edit onnx_ir graphs: the toolkit of all fusions and quantization.

Throughout the exporter a `graph` is an `onnx_ir.Model`, which holds an `onnx_ir.Graph` and its functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, NameFixPass, RemoveUnusedNodesPass

from bert_export.errors import FusionError
from bert_runtime.numerics import Float32Array

__all__ = [
    "MICROSOFT_DOMAIN",
    "FusionCounts",
    "Linear",
    "NoMatch",
    "add_initializer",
    "as_linear",
    "check_counts",
    "constant",
    "graph_input",
    "graph_of",
    "insert_before",
    "linears",
    "operators",
    "producer",
    "replace_value",
    "scope",
    "sole_consumer",
    "tidy",
]

MICROSOFT_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's contributed operators."""

FusionCounts = Mapping[str, Mapping[str, int]]
"""Per fusion, how many were `expected` and how many `found`."""


class NoMatch(Exception):  # noqa: N818 - control flow inside a fusion, never an error for the user
    """A subgraph is not what a fusion looks for; the message says what was expected and found."""


def operators(graph: ir.Model, op_type: str) -> list[ir.Node]:
    """Return all nodes of an operator type, in topological order."""
    return [node for node in graph.graph if node.op_type == op_type]


def graph_of(node: ir.Node) -> ir.Graph:
    """Return the graph that holds a node; it must not be in the body of a function."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def graph_input(graph: ir.Graph, name: str) -> ir.Value | None:
    """Return the input of a graph that has a name; `None` if there is none."""
    return next((value for value in graph.inputs if value.name == name), None)


def scope(node: ir.Node) -> str:
    """Return the PyTorch module that a node comes from, such as `encoder.layers.0.attention`."""
    names = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
    parts = [name.strip(" '\"") for name in names.strip("[]").split(",")]
    return parts[-2] if len(parts) > 1 else ""


def producer(value: ir.Value | None, op_type: str) -> ir.Node:
    """Return the node that computes `value`.

    Raises:
        NoMatch: there is none, or it is not an `op_type`.
    """
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type:
        found = node.op_type if node is not None else "a graph input or weight" if value is not None else "nothing"
        raise NoMatch(f"expected {op_type} before {value.name if value is not None else 'it'}, found {found}")
    return node


def sole_consumer(value: ir.Value, op_type: str) -> ir.Node:
    """Return the only node that reads `value`.

    Raises:
        NoMatch: there is none, there are several, it is not an `op_type`, or `value` is also a graph output.
    """
    consumers = value.consumers()
    if len(consumers) != 1 or consumers[0].op_type != op_type or value.is_graph_output():
        found = ", ".join(node.op_type for node in consumers) or "nothing"
        raise NoMatch(f"expected {value.name} to be read by one {op_type} alone, found {found}")
    return consumers[0]


def constant(value: ir.Value | None) -> NDArray[Any]:
    """Return the array of an initializer.

    Raises:
        NoMatch: `value` is not an initializer, or callers may override it since it is also a graph input.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        raise NoMatch(f"expected {value.name if value is not None else 'an input'} to be a constant")
    return value.const_value.numpy()


@dataclass(frozen=True)
class Linear:
    """A projection x·W + b in the graph: a MatMul, followed by an Add unless the bias is zero."""

    input: ir.Value
    output: ir.Value
    weight: ir.Value
    """A constant [in, out]."""
    bias: ir.Value | None
    """A constant [out]; `None` if it is all zero, for which torch leaves out the Add."""
    matmul: ir.Node

    @property
    def weight_array(self) -> Float32Array:
        """The weight's elements [in, out]."""
        return constant(self.weight)

    @property
    def bias_array(self) -> Float32Array:
        """The bias's elements [out]."""
        if self.bias is None:
            return np.zeros(self.weight_array.shape[1], dtype=np.float32)
        return constant(self.bias)


def as_linear(value: ir.Value | None) -> Linear:
    """Return the projection that computes `value`.

    Raises:
        NoMatch: `value` is not the product of an activation and a constant 2-D weight, with or without a 1-D bias.
    """
    add = value.producer() if value is not None else None
    product, bias = value, None
    if add is not None and add.op_type == "Add":
        product, bias = add.inputs
        if product is not None and product.const_value is not None:
            product, bias = bias, product
    matmul = producer(product, "MatMul")
    source, weight = matmul.inputs
    if source is None or weight is None or value is None or constant(weight).ndim != 2:
        raise NoMatch(f"expected a weight [in, out] at {scope(matmul)}, found {weight.shape if weight else None}")
    if bias is not None:
        if constant(bias).shape != constant(weight).shape[1:]:
            raise NoMatch(f"expected a bias [{constant(weight).shape[1]}] at {scope(matmul)}, found {bias.shape}")
        sole_consumer(matmul.outputs[0], "Add")
    return Linear(source, value, weight, bias, matmul)


def linears(graph: ir.Model) -> list[Linear]:
    """Return every projection of the graph, in topological order."""
    found = []
    for matmul in operators(graph, "MatMul"):
        product = matmul.outputs[0]
        try:
            found.append(as_linear(_after_bias(product) or product))
        except NoMatch:
            continue  # a matmul of two activations
    return found


def _after_bias(product: ir.Value) -> ir.Value | None:
    """Return the sum of a product and a constant, if that is all the product is read for."""
    consumers = product.consumers()
    if len(consumers) != 1 or consumers[0].op_type != "Add":
        return None
    others = [value for value in consumers[0].inputs if value is not None and value is not product]
    return consumers[0].outputs[0] if any(value.const_value is not None for value in others) else None


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Add a constant to the graph; a number is appended to a name that is taken."""
    unique, number = name, 1
    while unique in graph.initializers:
        unique, number = f"{name}_{number}", number + 1
    tensor = ir.tensor(array, name=unique)
    value = ir.Value(name=unique, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def insert_before(
    anchor: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    like: Sequence[ir.Value] | ir.Value,
    attributes: Mapping[str, Any] | None = None,
    shapes: Sequence[ir.Shape | None] | None = None,
    domain: str = "",
) -> list[ir.Value]:
    """Insert a node before `anchor`, in the same PyTorch scope.

    Args:
        anchor: the node to insert before.
        op_type: the new node's operator.
        inputs: its inputs; `None` for an optional one that is left out.
        like: values that its outputs take their element type from, and their shape unless `shapes` is given.
        attributes: its attributes.
        shapes: the shapes of its outputs.
        domain: the operator's domain; standard ONNX by default.

    Returns:
        The new node's outputs, as many as `like` has values.
    """
    sources = [like] if isinstance(like, ir.Value) else list(like)
    shapes = shapes or [source.shape for source in sources]
    outputs = [ir.Value(type=source.type, shape=shape) for source, shape in zip(sources, shapes, strict=True)]
    node = ir.node(op_type, inputs, attributes or {}, domain=domain, outputs=outputs)
    node.metadata_props.update(anchor.metadata_props)
    graph_of(anchor).insert_before(anchor, node)
    return outputs


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads a value read another one; where it is an output of the graph, its name stays."""
    node = new.producer()
    if old.is_graph_output() and node is not None:
        old.name, new.name = f"{old.name} before {node.op_type}", old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def check_counts(found: Mapping[str, int], expected: Mapping[str, int], reasons: list[str]) -> FusionCounts:
    """Return the expected and found number of each fusion.

    Raises:
        FusionError: two numbers differ; the message gives them and `reasons`.
    """
    counts = {name: {"expected": number, "found": found.get(name, 0)} for name, number in expected.items()}
    differing = [
        f"{name} (expected {count['expected']}, found {count['found']})"
        for name, count in counts.items()
        if count["found"] != count["expected"]
    ]
    if differing:
        because = "; ".join(reasons) or "torch captured other operators than expected"
        raise FusionError(
            f"the graph could not be fused as its configuration demands: {', '.join(differing)}. {because}"
        )
    return counts


def tidy(graph: ir.Model) -> None:
    """Merge common subexpressions, remove unused nodes, and make value names unique."""
    CommonSubexpressionEliminationPass()(graph)
    RemoveUnusedNodesPass()(graph)
    NameFixPass()(graph)
