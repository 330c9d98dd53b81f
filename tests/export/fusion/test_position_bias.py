"""Attention's bias by relative position: one constant by distance, and masks for the queries that there are."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.errors import FusionError
from bert_export.fusion import add_padding_branch, fuse
from bert_export.fusion.position_bias import position_bias
from bert_export.onnx_graph import NoMatch, operators, scope
from bert_export.parity import check_parity
from bert_models import TaskModel

from ..toy_models import CLASSIFIER, MEAN, RELATIVE, captured, fused, graph_runner, toy_model


@pytest.fixture(scope="module", params=[CLASSIFIER, MEAN], ids=["classifier", "mean"])
def relative(request: pytest.FixtureRequest) -> tuple[TaskModel, ir.Model]:
    """A toy model with relative positions, and its graph before any fusion."""
    return toy_model(request.param, RELATIVE), captured(request.param, RELATIVE)


def test_table_is_one_constant_by_distance(relative: tuple[TaskModel, ir.Model], tmp_path: Path) -> None:
    model, graph = relative[0], relative[1].clone()
    assert fuse(graph, RELATIVE, model.task)["position_bias"] == {"expected": 1, "found": 1}
    tables = [value for name, value in graph.graph.initializers.items() if "position_bias" in name]
    (table,) = [value.const_value.numpy() for value in tables if value.dtype == ir.DataType.FLOAT]
    assert table.shape == (RELATIVE.num_heads, 2 * RELATIVE.max_tokens - 1)
    assert model.encoder.position_bias is not None
    weight = model.encoder.position_bias.table.weight.detach().numpy()
    zero, last = RELATIVE.max_tokens - 1, 2 * RELATIVE.max_tokens - 2
    np.testing.assert_array_equal(table[:, [zero, zero - 1, zero + 1, 0, last]], weight[[0, 1, 17, 15, 31]].T)
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), RELATIVE.max_tokens)


def test_no_weight_has_an_element_for_each_query_and_key(relative: tuple[TaskModel, ir.Model]) -> None:
    model, graph = relative[0], relative[1].clone()
    fuse(graph, RELATIVE, model.task)
    shapes = [value.const_value.numpy().shape for value in graph.graph.initializers.values()]
    assert not [shape for shape in shapes if shape.count(RELATIVE.max_tokens) > 1]


def test_one_query_gets_the_mask_of_one_query(tmp_path: Path) -> None:
    """A classifier's last layer; nothing is branched around, since all scores have a bias."""
    model, graph = toy_model(CLASSIFIER, RELATIVE), captured(CLASSIFIER, RELATIVE)
    fusions = fuse(graph, RELATIVE, CLASSIFIER)
    finished, counts = add_padding_branch(graph, fusions)
    assert counts == fusions
    assert not operators(finished, "If")
    sizes = [str(node.inputs[3].shape[2]) for node in operators(finished, "Attention")]  # type: ignore[index, union-attr]
    assert sizes == ["sequence", "sequence", "1"]
    assert [node.inputs[3].producer().op_type for node in operators(finished, "Attention")] == ["Where"] * 3  # type: ignore[union-attr]
    check_parity(model, graph_runner(finished, tmp_path / "model.onnx"), RELATIVE.max_tokens)


def test_boolean_mask_has_no_position_bias() -> None:
    _, graph = fused(MEAN)
    with pytest.raises(NoMatch, match="expected Where"):
        position_bias(operators(graph, "Attention")[0].inputs[3])


def test_other_lookup_is_an_error_with_the_reason(relative: tuple[TaskModel, ir.Model]) -> None:
    model, graph = relative[0], relative[1].clone()
    (lookup,) = (node for node in operators(graph, "Gather") if scope(node) == "encoder.position_bias.table")
    lookup.outputs[0].consumers()[0].op_type = "Identity"
    with pytest.raises(FusionError, match=r"position_bias \(expected 1, found 0\).*transposed, found \['Identity'\]"):
        fuse(graph, RELATIVE, model.task)
