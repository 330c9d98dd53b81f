"""Run the masked-language-model head at mask tokens alone, and let it share the token embedding's matrix.

The head scores the whole vocabulary, a matmul of width 30,000 or more for every token, while only mask tokens are asked
about. Every operator of the head works on each token by itself, so the mask tokens can be gathered before it. The graph
then outputs one vector of scores per mask, in the order of the batch. Its last matmul reads the token embedding
transposed, so that the matrix is stored once.

Bundles count this fusion under the key `masked_rows`.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import (
    Linear,
    NoMatch,
    add_initializer,
    as_linear,
    constant,
    graph_input,
    insert_before,
    operators,
    scope,
)

__all__ = ["fuse_mlm_gather_masks", "token_embedding"]

_TOKENWISE = ("MatMul", "Add", "Gelu", "LayerNormalization", "Relu", "Sigmoid", "Tanh", "Mul", "Pow")
"""Operators that work on each token by itself in a head."""


def fuse_mlm_gather_masks(graph: ir.Model, mask_token_id: int) -> None:
    """Gather the hidden states of mask tokens before the head, in place: the output becomes [masks, vocabulary].

    Raises:
        NoMatch: the head has other operators or inputs than expected, or does not score with the token embedding.
    """
    (output,) = graph.graph.outputs
    head = [node for node in graph.graph if scope(node).startswith("head")]
    hidden = _head_input(head)
    gathered = _gather_masks(graph.graph, head[0], hidden, mask_token_id)
    for node in head:
        for index, value in enumerate(node.inputs):
            if value is hidden:
                node.replace_input_with(index, gathered)
        for value in node.outputs:
            value.shape = ir.Shape(["masks", value.shape[-1]]) if value.shape is not None else None
    _share_embedding(graph, output)


def _head_input(head: list[ir.Node]) -> ir.Value:
    """Return the encoder's output, the only activation from outside that the head reads."""
    inside = {value for node in head for value in node.outputs}
    read = {value for node in head for value in node.inputs if value is not None and value.const_value is None}
    outside = sorted(read - inside, key=lambda value: str(value.name))
    if len(outside) != 1:
        raise NoMatch(f"expected the head to read one value, found {', '.join(str(value.name) for value in outside)}")
    unexpected = sorted({node.op_type for node in head} - set(_TOKENWISE))
    if unexpected:
        raise NoMatch(f"expected a head that works on each token by itself, found {', '.join(unexpected)}")
    return outside[0]


def _gather_masks(graph: ir.Graph, first: ir.Node, hidden: ir.Value, mask_token_id: int) -> ir.Value:
    """Gather the hidden states of mask tokens, [B, S, H] → [masks, H], in the order of the batch."""
    ids = graph_input(graph, "input_ids")
    assert ids is not None
    mask = add_initializer(graph, "masked_rows.token", np.array(mask_token_id, dtype=np.int64))
    (is_mask,) = insert_before(first, "Equal", [ids, mask], like=ids)
    is_mask.type = ir.TensorType(ir.DataType.BOOL)
    (positions,) = insert_before(first, "NonZero", [is_mask], like=ids, shapes=[ir.Shape([2, "masks"])])
    (indices,) = insert_before(
        first, "Transpose", [positions], like=ids, shapes=[ir.Shape(["masks", 2])], attributes={"perm": [1, 0]}
    )
    width = hidden.shape[-1] if hidden.shape is not None else None
    (gathered,) = insert_before(first, "GatherND", [hidden, indices], like=hidden, shapes=[ir.Shape(["masks", width])])
    return gathered


def _share_embedding(graph: ir.Model, output: ir.Value) -> None:
    """Replace the matmul with the transposed token embedding by a Gemm that reads the embedding as it is stored."""
    linear = as_linear(output)
    embedding = token_embedding(graph, linear)
    add = output.producer()
    assert add is not None
    bias = linear.bias or add_initializer(graph.graph, "head.bias", linear.bias_array)
    (scores,) = insert_before(add, "Gemm", [linear.input, embedding, bias], like=output, attributes={"transB": 1})
    scores.name, output.name = output.name, None
    graph.graph.outputs[0] = scores


def token_embedding(graph: ir.Model, linear: Linear) -> ir.Value:
    """Return the token embedding [V, H] that a projection to the vocabulary multiplies by.

    Raises:
        NoMatch: it multiplies by another matrix.
    """
    embedding = next(
        (
            node.inputs[0]
            for node in operators(graph, "Gather")
            if scope(node).endswith("embeddings.token") and node.inputs[0] is not None
        ),
        None,
    )
    if embedding is None or not np.array_equal(constant(embedding).T, linear.weight_array):
        raise NoMatch("expected the head to score with the token embedding, found another matrix")
    return embedding
