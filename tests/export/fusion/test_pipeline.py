"""All fusions together: where they fire, where they must not, and that the outputs stay the same."""

from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from bert_export.capture import capture
from bert_export.errors import FusionError
from bert_export.fusion import fuse
from bert_export.fusion.attention import fuse_attention
from bert_export.fusion.merge_qkv import merge_qkv
from bert_export.onnx_graph import NoMatch, as_linear, linears, operators
from bert_export.parity import check_parity
from bert_models import EncoderConfig, TaskModel
from bert_runtime.tasks import Task

from ..toy_models import CLASSIFIER, CLS, CONFIG, MEAN, captured, graph_runner, toy_model


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN, CLS], ids=["classifier", "mean", "cls"])
def test_fused_graph_computes_what_torch_computes(task: Task, tmp_path: Path) -> None:
    model = toy_model(task)
    graph = captured(task)
    counts = fuse(graph, CONFIG, task)
    first_token = int(task.reads_first_token_only)
    assert {name: count["found"] for name, count in counts.items()} == {
        "attention": 3, "first_row": first_token, "masked_rows": 0, "qkv_projection": 3 - first_token,
        "kv_projection": first_token,
        "layer_normalization": 7, "gelu": 3,
    }  # fmt: skip
    run = graph_runner(graph, tmp_path / "model.onnx")
    assert check_parity(model, run, CONFIG.max_positions)["max_abs_error"] <= 1e-5
    assert {"Transpose", "Reshape"}.isdisjoint(node.op_type for node in graph.graph)


@pytest.mark.parametrize("layers", [1, 2])
def test_models_of_one_or_two_layers_fuse(layers: int, tmp_path: Path) -> None:
    config = EncoderConfig(
        family="bert", vocab_size=61, hidden_size=8, num_layers=layers, num_heads=1, intermediate_size=5,
        max_positions=16, type_vocab_size=0,
    )  # fmt: skip
    model, graph = toy_model(CLASSIFIER, config), captured(CLASSIFIER, config)
    fuse(graph, config, CLASSIFIER)
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), 16)


@pytest.mark.parametrize(("activation", "found"), [("gelu", 3), ("gelu_new", 3), ("relu", 0)])
def test_gelu_is_counted_and_relu_is_not(activation: str, found: int, tmp_path: Path) -> None:
    config = EncoderConfig(**{**vars(CONFIG), "activation": activation})
    model, graph = toy_model(CLASSIFIER, config), captured(CLASSIFIER, config)
    assert fuse(graph, config, CLASSIFIER)["gelu"]["found"] == found
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), 32)


def test_zero_biases_and_equal_weights_still_fuse(tmp_path: Path) -> None:
    """As initialized, biases are zero and torch drops their Adds; LayerNorms are equal and torch shares them."""
    torch.manual_seed(0)
    model = TaskModel(CONFIG, CLASSIFIER).eval()
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    check_parity(model, graph_runner(graph, tmp_path / "model.onnx"), 32)


def test_projections_of_different_inputs_are_not_merged() -> None:
    graph = captured(MEAN)
    attention = operators(graph, "Attention")[0]
    fuse_attention(attention)
    attention = operators(graph, "Attention")[0]
    value = as_linear(attention.inputs[2])
    value.matmul.replace_input_with(0, graph.graph.inputs[0])
    with pytest.raises(NoMatch, match="are projected from different values"):
        merge_qkv(attention)


def test_attention_with_another_head_layout_does_not_match() -> None:
    graph = captured(MEAN)
    attention = operators(graph, "Attention")[1]
    producer = attention.inputs[1].producer()
    producer.attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])
    with pytest.raises(NoMatch, match=r"expected the permutation \(0, 2, 1, 3\)"):
        fuse_attention(attention)


def test_missing_fusion_is_an_error_with_module_and_reason() -> None:
    graph = captured(MEAN)
    operators(graph, "Attention")[1].inputs[1].producer().attributes["perm"] = ir.AttrInt64s("perm", [0, 2, 3, 1])
    with pytest.raises(FusionError) as caught:
        fuse(graph, CONFIG, MEAN)
    assert "attention (expected 3, found 2)" in str(caught.value)
    assert "attention at encoder.layers.1.attention: expected the permutation" in str(caught.value)


def test_weights_are_named_after_their_module() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    names = {linear.weight.name for linear in linears(graph)}
    assert {"encoder.layers.0.attention.qkv.weight", "encoder.layers.2.attention.kv.weight"} <= names
    assert {"encoder.layers.2.attention.query.weight", "encoder.layers.1.feed_forward.down.weight"} <= names
    assert not any(str(name).startswith("val_") for name in names)


def test_axes_stay_dynamic_and_outputs_keep_their_name() -> None:
    graph = captured(CLASSIFIER)
    fuse(graph, CONFIG, CLASSIFIER)
    assert [str(axis) for value in graph.graph.inputs for axis in value.shape] == ["batch", "sequence"] * 3
    assert [value.name for value in graph.graph.outputs] == ["logits"]
