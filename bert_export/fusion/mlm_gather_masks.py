"""The masked-language head at the masks alone, by the token embedding itself.

A head that scores the whole vocabulary is a product of width 30,000 and more for every token, and only masks are asked
about. Every operator of the head works on each row by itself, so the rows of masks may be gathered before them; the
graph then gives one row per mask of the batch, row by row. What is left of the product reads the token embedding
transposed, so that the matrix is stored once.
"""

import numpy as np
import onnx_ir as ir

from bert_export.onnx_graph import NoMatch, add_initializer, as_linear, constant, insert_before, operators, scope

__all__ = ["fuse_mlm_gather_masks"]


def fuse_mlm_gather_masks(model: ir.Model, mask_token_id: int) -> None:
    """Gathers the rows of masks before the head; raises `NoMatch` where the head is not what is expected."""
    graph = model.graph
    (output,) = graph.outputs
    head = [node for node in graph if scope(node).startswith("head")]
    hidden = _hidden(head)
    rows = _rows_of_masks(graph, head[0], hidden, mask_token_id)
    for node in head:
        for index, value in enumerate(node.inputs):
            if value is hidden:
                node.replace_input_with(index, rows)
        for value in node.outputs:
            value.shape = ir.Shape(["masks", value.shape[-1]]) if value.shape is not None else None
    _share_embedding(model, output)


def _hidden(head: list[ir.Node]) -> ir.Value:
    """The encoder's output, the only activation that the head reads."""
    inside = {value for node in head for value in node.outputs}
    read = {value for node in head for value in node.inputs if value is not None and value.const_value is None}
    outside = sorted(read - inside, key=lambda value: str(value.name))
    if len(outside) != 1:
        raise NoMatch(f"expected the head to read one value, found {', '.join(str(each.name) for each in outside)}")
    row_wise = ("MatMul", "Add", "Gelu", "LayerNormalization", "Relu", "Tanh", "Mul", "Pow")
    strange = sorted({node.op_type for node in head} - set(row_wise))
    if strange:
        raise NoMatch(f"expected a head that works row by row, found {', '.join(strange)}")
    return outside[0]


def _rows_of_masks(graph: ir.Graph, first: ir.Node, hidden: ir.Value, mask_token_id: int) -> ir.Value:
    """hidden [B, S, H] → its rows at masks [masks, H], in the order of the batch."""
    (ids,) = (value for value in graph.inputs if value.name == "input_ids")
    mask = add_initializer(graph, "masked_rows.token", np.array(mask_token_id, dtype=np.int64))
    (equal,) = insert_before(first, "Equal", [ids, mask], like=ids)
    equal.type = ir.TensorType(ir.DataType.BOOL)
    (places,) = insert_before(first, "NonZero", [equal], like=ids, shapes=[ir.Shape([2, "masks"])])
    (indices,) = insert_before(
        first, "Transpose", [places], like=ids, shapes=[ir.Shape(["masks", 2])], attributes={"perm": [1, 0]}
    )
    width = hidden.shape[-1] if hidden.shape is not None else None
    (rows,) = insert_before(first, "GatherND", [hidden, indices], like=hidden, shapes=[ir.Shape(["masks", width])])
    return rows


def _share_embedding(model: ir.Model, output: ir.Value) -> None:
    """Replaces the product with the transposed token embedding by one that reads the embedding as it is stored."""
    linear = as_linear(output)
    embedding = next(
        (
            node.inputs[0]
            for node in operators(model, "Gather")
            if scope(node).endswith("embeddings.token") and node.inputs[0] is not None
        ),
        None,
    )
    if embedding is None or not np.array_equal(constant(embedding).T, linear.weight_array):
        raise NoMatch("expected the head to score by the token embedding, found another matrix")
    add = output.producer()
    assert add is not None
    bias = linear.bias or add_initializer(model.graph, "head.bias", linear.bias_array)
    (product,) = insert_before(add, "Gemm", [linear.input, embedding, bias], like=output, attributes={"transB": 1})
    product.name, output.name = output.name, None
    model.graph.outputs[0] = product
