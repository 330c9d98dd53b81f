"""The fused graph for CUDA in FP32: its operators, and that it computes what PyTorch computes."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from bert_export.capture import capture
from bert_export.cuda import convert_to_fp16, fuse_for_cuda
from bert_export.cuda.attention import CUDA_MASKED_SCORE, MASK_INPUT
from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import FusionError
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators, scope
from bert_export.parity import probe_batches, reference_outputs
from bert_models import TaskModel
from bert_runtime.tasks import Task

from ..toy_models import CLASSIFIER, CONFIG, MEAN, fused, fused_for_cuda, graph_runner


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_graph_computes_what_torch_computes(task: Task, tmp_path: Path) -> None:
    model, graph = fused_for_cuda(task)
    run = graph_runner(graph, tmp_path / "fp32.onnx")
    batches = probe_batches(model, 32).values()
    errors = [np.abs(run(batch) - reference_outputs(model, batch)).max() for batch in batches]
    assert max(errors) <= 1e-5


def test_operators_are_those_with_fast_cuda_kernels() -> None:
    _, graph = fused_for_cuda(CLASSIFIER)
    assert {name: len(operators(graph, name)) for name in ("Attention", "Gelu", "LayerNormalization")} == {
        "Attention": 3, "Gelu": 0, "LayerNormalization": 1,
    }  # fmt: skip
    counts = {"Attention": 3, "SkipLayerNormalization": 6, "BiasGelu": 3}
    for name, count in counts.items():
        nodes = operators(graph, name)
        assert (len(nodes), {node.domain for node in nodes}) == (count, {"com.microsoft"})
    assert [len(node.inputs) for node in operators(graph, "SkipLayerNormalization")] == [5] * 6  # each with its bias
    assert graph.graph.opset_imports == {"": 20, "com.microsoft": 1}


def layer_operators(graph: ir.Model, layer: int) -> list[str]:
    """Return the operators of a layer that launch kernels; Reshape launches none."""
    names = [node.op_type for node in graph.graph if scope(node).startswith(f"encoder.layers.{layer}")]
    return [name for name in names if name not in ("Reshape", "Where", "Cast", "Shape", "Expand", "Unsqueeze")]


def test_layers_have_no_bias_or_split_before_attention() -> None:
    """Attention launches 3 kernels: the projection, bias and separation, and attention itself; the others one each."""
    _, graph = fused_for_cuda(CLASSIFIER)
    rest = ["MatMul", "SkipLayerNormalization", "MatMul", "BiasGelu", "MatMul", "SkipLayerNormalization"]
    assert layer_operators(graph, 1) == ["Attention", *rest]
    assert sorted(layer_operators(graph, 2)) == sorted(["Attention", "Slice", "Slice", *rest])


def test_operands_that_were_not_merged_are_an_error_with_the_reason() -> None:
    _, graph = fused(MEAN)
    graph = graph.clone()
    attention = operators(graph, "Attention")[0]
    query, key = attention.inputs[:2]
    attention.replace_input_with(0, key)
    attention.replace_input_with(1, query)
    with pytest.raises(FusionError, match=r"expected a merged projection of query, key and value"):
        fuse_for_cuda(graph, CONFIG)


def test_additive_mask_is_finite_and_computed_once() -> None:
    _, graph = fused_for_cuda(CLASSIFIER)
    convert_to_fp16(graph)
    biases = [node.inputs[MASK_INPUT] for node in operators(graph, "Attention")]
    assert [str(bias.shape) for bias in biases] == ["[batch,1,sequence,sequence]"] * 3
    assert biases[0] is biases[1] is biases[2]
    for value in graph.graph.initializers.values():
        assert np.isfinite(value.const_value.numpy()).all(), value.name
    assert float(np.float16(CUDA_MASKED_SCORE)) == CUDA_MASKED_SCORE


def test_causal_attention_is_an_error_with_the_reason() -> None:
    _, graph = fused(MEAN)
    graph = graph.clone()
    operators(graph, "Attention")[1].attributes["is_causal"] = ir.AttrInt64("is_causal", 1)
    with pytest.raises(FusionError) as caught:
        fuse_for_cuda(graph, CONFIG)
    assert "attention_with_projection (expected 3, found 2)" in str(caught.value)
    assert "Attention at encoder.layers.1.attention: expected attention in both directions" in str(caught.value)


def test_zero_biases_still_fuse(tmp_path: Path) -> None:
    """As initialized, biases are zero and torch leaves out their Adds."""
    torch.manual_seed(0)
    model = TaskModel(CONFIG, CLASSIFIER).eval()
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    assert fuse_for_cuda(graph, CONFIG)["bias_gelu"] == {"expected": 3, "found": 3}
    check_cuda_parity(model, graph_runner(graph, tmp_path / "fp32.onnx"), 32, fp16=False)
