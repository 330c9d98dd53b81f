"""Branch around attention's mask: a batch without padding runs Attention without it.

ONNX Runtime copies the mask into the scores of every head before it multiplies, which costs more the longer a sequence
is (measured by `python -m bert_bench.experiments.fusions`, in bench/results/fusions.json). A single text, or several of
one length, have nothing to mask. The condition is computed once per batch, and a branch costs about 10 µs. This is the
last rewrite of a graph for the CPU, since the others look for Attention.

Attention with a position bias or position scores has something to add to every score, so that there is nothing to
branch around.
"""

import onnx_ir as ir

from bert_export.fusion.position_bias import narrow_to_first_query
from bert_export.fusion.prune_tokens import pruned_is_full
from bert_export.onnx_graph import FusionCounts, check_counts, graph_input, insert_before, operators, tidy

__all__ = ["add_padding_branch", "insert_is_full"]

_SCALAR = ir.Shape([])


def add_padding_branch(graph: ir.Model, fusions: FusionCounts) -> tuple[ir.Model, FusionCounts]:
    """Add a branch around each masked Attention of more than one query.

    A single query, that of the first token, is too little work to gain by it.

    Args:
        graph: a graph that `fuse` returned; it is not changed.
        fusions: the counts that `fuse` returned.

    Returns:
        A copy of the graph, which shares its weights, and `fusions` with the number of branches.

    Raises:
        FusionError: the number of branches is not what `fusions` demands.
    """
    branched = graph.clone()
    if "position_scores" in fusions:
        return branched, fusions
    masked = [node for node in operators(branched, "Attention") if _is_masked(node)]
    if "rotary" in fusions:  # its kernels take a mask of keys, see `bert_export.outline_rotary`
        return branched, fusions
    if "position_bias" in fusions:
        for node in filter(_has_one_query, masked):
            narrow_to_first_query(node)
        tidy(branched)
        return branched, fusions
    nodes = [node for node in masked if not _has_one_query(node)]
    is_full = insert_is_full(branched) if nodes else None
    if is_full is not None:
        for number, node in enumerate(nodes):
            _add_branch(node, pruned_is_full(node.inputs[3]) or is_full, number)
        tidy(branched)
    found = {"padding_branch": len(operators(branched, "If"))}
    expected = {"padding_branch": fusions["attention"]["found"] - fusions["first_row"]["found"]}
    return branched, {**fusions, **check_counts(found, expected, [])}


def insert_is_full(graph: ir.Model) -> ir.Value | None:
    """Insert whether a batch is without padding, bool [], before all other nodes; `None` if the graph has no mask."""
    mask = graph_input(graph.graph, "attention_mask")
    if mask is None:
        return None
    first = next(iter(graph.graph))
    (minimum,) = insert_before(first, "ReduceMin", [mask], like=mask, shapes=[_SCALAR], attributes={"keepdims": 0})
    (is_full,) = insert_before(
        first, "Cast", [minimum], like=minimum, shapes=[_SCALAR], attributes={"to": ir.DataType.BOOL}
    )
    is_full.type = ir.TensorType(ir.DataType.BOOL)
    return is_full


def _is_masked(node: ir.Node) -> bool:
    return len(node.inputs) > 3 and node.inputs[3] is not None


def _has_one_query(node: ir.Node) -> bool:
    query = node.inputs[0]
    return query is not None and query.shape is not None and query.shape[1] == 1


def _add_branch(node: ir.Node, is_full: ir.Value, number: int) -> None:
    """Replace Attention by an If on `is_full`: Attention without its mask, or with it."""
    (output,) = node.outputs

    def body(name: str, inputs: list[ir.Value | None]) -> ir.Graph:
        result = ir.Value(name=f"attention.{number}.{name}", shape=output.shape, type=output.type)
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        attention = ir.node("Attention", inputs, attributes, outputs=[result])
        attention.metadata_props.update(node.metadata_props)
        return ir.Graph([], [result], nodes=[attention], name=f"attention.{number}.{name}.body")

    branches = {
        "then_branch": body("unmasked", list(node.inputs[:3])),
        "else_branch": body("masked", list(node.inputs)),
    }
    (chosen,) = insert_before(node, "If", [is_full], like=output, attributes=branches)
    output.replace_all_uses_with(chosen)
