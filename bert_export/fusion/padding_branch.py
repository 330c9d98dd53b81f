"""Attention that leaves its mask out where a batch has no padding, in a branch of the graph.

ONNX Runtime copies the mask into the scores of every head before it multiplies, which costs more the longer a
sequence is (bench/results/fusions.json). A single text, or several of one length, have nothing to mask. The condition
is computed once a run, and a branch costs about 10 µs. It is the last rewrite of a graph for the CPU: others look for
Attention.
"""

import onnx_ir as ir

from bert_export.onnx_graph import FusionCounts, check_counts, insert_before, operators, tidy

__all__ = ["add_padding_branch"]


def add_padding_branch(model: ir.Model, fusions: FusionCounts) -> tuple[ir.Model, FusionCounts]:
    """A copy with a branch around each masked Attention of several queries, and `fusions` with their number.

    That of a single query, the first row, is too small to gain by it. Weights are shared with `model`. Raises
    `FusionError` where `fusions`, what `fuse` returned, lets expect another number.
    """
    branched = model.clone()
    mask = next((each for each in branched.graph.inputs if each.name == "attention_mask"), None)
    nodes = [node for node in operators(branched, "Attention") if _is_masked(node) and not _has_one_query(node)]
    if mask is not None and nodes:
        first = next(iter(branched.graph))
        (smallest,) = insert_before(first, "ReduceMin", [mask], like=mask, shapes=[_SCALAR], attributes={"keepdims": 0})
        (is_full,) = insert_before(
            first, "Cast", [smallest], like=smallest, shapes=[_SCALAR], attributes={"to": ir.DataType.BOOL}
        )
        is_full.type = ir.TensorType(ir.DataType.BOOL)
        for number, node in enumerate(nodes):
            _branch(node, is_full, number)
        tidy(branched)
    found = {"padding_branch": len(operators(branched, "If"))}
    expected = {"padding_branch": fusions["attention"]["found"] - fusions["first_row"]["found"]}
    return branched, {**fusions, **check_counts(found, expected, [])}


_SCALAR = ir.Shape([])


def _is_masked(node: ir.Node) -> bool:
    return len(node.inputs) > 3 and node.inputs[3] is not None


def _has_one_query(node: ir.Node) -> bool:
    query = node.inputs[0]
    return query is not None and query.shape is not None and query.shape[1] == 1


def _branch(node: ir.Node, is_full: ir.Value, number: int) -> None:
    """Attention → If without padding Attention without its mask, else with it."""
    (output,) = node.outputs

    def body(name: str, inputs: list[ir.Value | None]) -> ir.Graph:
        result = ir.Value(name=f"attention.{number}.{name}", shape=output.shape, type=output.type)
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        inner = ir.node("Attention", inputs, attributes, outputs=[result])
        inner.metadata_props.update(node.metadata_props)
        return ir.Graph([], [result], nodes=[inner], name=f"attention.{number}.{name}.body")

    branches = {
        "then_branch": body("unmasked", list(node.inputs[:3])),
        "else_branch": body("masked", list(node.inputs)),
    }
    (chosen,) = insert_before(node, "If", [is_full], like=output, attributes=branches)
    output.replace_all_uses_with(chosen)
