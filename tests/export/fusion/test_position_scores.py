"""Disentangled attention's position scores: one function per layer, of constants by distance."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.attention_graph import add_attention_outputs, reference_attention
from bert_export.errors import FusionError
from bert_export.fusion import add_padding_branch, fuse
from bert_export.fusion.position_scores import position_scores
from bert_export.onnx_graph import NoMatch, operators, scope
from bert_export.parity import check_parity, probe_batches
from bert_export.position_functions import POSITION_SCORES
from bert_models import EncoderConfig, TaskModel
from bert_runtime.cpu.session import Session

from ..toy_models import CLASSIFIER, DISENTANGLED, MEAN, captured, fused, graph_runner, toy_model

OPTIONS = {
    "c2p": {"position_attention": "c2p"},
    "own projections": {"share_position_projections": False, "norm_relative_positions": False},
    "distances": {"position_buckets": None, "max_relative_positions": 9},
    "absolute": {"positions": "absolute"},
}
FAST = "c2p"


@pytest.fixture(scope="module", params=[CLASSIFIER, MEAN], ids=["classifier", "mean"])
def disentangled(request: pytest.FixtureRequest) -> tuple[TaskModel, ir.Model]:
    """A toy model with position scores, and its graph before any fusion."""
    return toy_model(request.param, DISENTANGLED), captured(request.param, DISENTANGLED)


def test_every_layer_calls_the_function(disentangled: tuple[TaskModel, ir.Model], tmp_path: Path) -> None:
    model, graph = disentangled[0], disentangled[1].clone()
    assert fuse(graph, DISENTANGLED, model.task)["position_scores"] == {"expected": 3, "found": 3}
    assert len(operators(graph, POSITION_SCORES.name)) == 3
    assert not [node for node in graph.graph if scope(node).endswith(".positions") and node.op_type == "MatMul"]
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), DISENTANGLED.max_tokens)


def test_projections_are_constants_and_no_table_has_an_element_for_each_query_and_key(
    disentangled: tuple[TaskModel, ir.Model],
) -> None:
    model, graph = disentangled[0], disentangled[1].clone()
    fuse(graph, DISENTANGLED, model.task)
    shapes = {name: value.const_value.numpy().shape for name, value in graph.graph.initializers.items()}
    tables = [shape for name, shape in shapes.items() if name.endswith(("position_keys", "position_queries"))]
    assert tables == [(4, 32, 6)] * 6
    assert not [name for name in shapes if "relative_positions.table" in name or "relative_positions.norm" in name]
    assert not [shape for shape in shapes.values() if shape.count(DISENTANGLED.max_tokens) > 1]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == FAST else [pytest.mark.slow]) for name in OPTIONS]
)
def test_every_option_has_parity(name: str, tmp_path: Path) -> None:
    config: EncoderConfig = replace(DISENTANGLED, **OPTIONS[name])  # type: ignore[arg-type]
    model, graph = toy_model(CLASSIFIER, config), captured(CLASSIFIER, config)
    fusions = fuse(graph, config, CLASSIFIER)
    finished, counts = add_padding_branch(graph, fusions)
    assert counts == fusions
    assert not operators(finished, "If")
    check_parity(model, graph_runner(finished, tmp_path / "model.onnx"), config.max_tokens)


def test_one_query_gets_the_scores_of_one_query() -> None:
    graph = captured(CLASSIFIER, DISENTANGLED)
    fuse(graph, DISENTANGLED, CLASSIFIER)
    sizes = [str(node.outputs[0].shape[2]) for node in operators(graph, POSITION_SCORES.name)]  # type: ignore[index]
    assert sizes == ["sequence", "sequence", "1"]
    last = operators(graph, POSITION_SCORES.name)[-1]
    assert [str(last.inputs[i].shape[1]) for i in (0, 1)] == ["1", "sequence"]  # type: ignore[index, union-attr]


def test_probabilities_equal_those_of_pytorch(tmp_path: Path) -> None:
    model, graph = toy_model(CLASSIFIER, DISENTANGLED), captured(CLASSIFIER, DISENTANGLED)
    fuse(graph, DISENTANGLED, CLASSIFIER)
    ir.save(add_attention_outputs(graph, DISENTANGLED), path := tmp_path / "model.onnx")
    session = Session(path, CLASSIFIER.output, 1, kernels=False)
    for batch in probe_batches(model, DISENTANGLED.max_tokens).values():
        found = session.run_outputs(batch, [f"attention.{layer}" for layer in range(3)])
        for layer, expected in zip(found, reference_attention(model, batch), strict=True):
            np.testing.assert_allclose(layer, expected, atol=1e-5)


def test_boolean_mask_has_no_position_scores() -> None:
    _, graph = fused(MEAN)
    with pytest.raises(NoMatch, match="expected PositionScores"):
        position_scores(operators(graph, "Attention")[0].inputs[3])


def test_another_operator_is_an_error_with_the_reason(disentangled: tuple[TaskModel, ir.Model]) -> None:
    model, graph = disentangled[0], disentangled[1].clone()
    lookups = [node for node in operators(graph, "Gather") if scope(node) == "encoder.layers.1.attention.positions"]
    lookups[0].op_type = "Identity"
    with pytest.raises(
        FusionError, match=r"position_scores \(expected 3, found 2\).*layers\.1\.attention: expected Gather"
    ):
        fuse(graph, DISENTANGLED, model.task)
