"""The graphs for CUDA, as far as a machine without a GPU can tell: what is in them, and that they compute the same."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from bert_export.capture import capture
from bert_export.cuda import convert_to_fp16, find_fp16_overflows, fuse_for_cuda
from bert_export.cuda.fp16 import fp16_nodes
from bert_export.cuda.fusion import MASKED_SCORE
from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import ExportError, FusionError, ParityError
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators
from bert_export.parity import probe_batches, reference_outputs
from bert_export.targets import VariantPlan, plan_paddings, plan_variants
from bert_models import TaskModel
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

from ..fusion.test_pipeline import CLASSIFIER, CONFIG, MEAN, captured, runner, toy_model

Made = Callable[[Task], tuple[TaskModel, ir.Model]]


@cache
def fused(task: Task) -> tuple[TaskModel, ir.Model]:
    model = toy_model(task)
    graph = captured(task)
    fuse(graph, CONFIG, task)
    return model, graph


def for_cuda(task: Task) -> tuple[TaskModel, ir.Model]:
    """A toy model and its graph for CUDA, in FP32."""
    model, graph = fused(task)
    graph = graph.clone()
    fuse_for_cuda(graph, CONFIG)
    return model, graph


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_the_graph_computes_what_torch_computes(task: Task, tmp_path: Path) -> None:
    model, graph = for_cuda(task)
    run = runner(graph, tmp_path / "fp32.onnx")
    errors = [np.abs(run(b) - reference_outputs(model, b)).max() for b in probe_batches(model, 32).values()]
    assert max(errors) <= 1e-5
    convert_to_fp16(graph)
    parity = check_cuda_parity(model, runner(graph, tmp_path / "fp16.onnx"), 32, fp16=True)
    assert 1e-6 < parity["max_abs_error"] <= 1e-2


def test_operators_are_those_that_cuda_is_fast_at() -> None:
    _, graph = for_cuda(CLASSIFIER)
    assert {name: len(operators(graph, name)) for name in ("Attention", "Gelu", "LayerNormalization")} == {
        "Attention": 0, "Gelu": 0, "LayerNormalization": 1,
    }  # fmt: skip
    for name, count in (("MultiHeadAttention", 3), ("SkipLayerNormalization", 6), ("BiasGelu", 3)):
        nodes = operators(graph, name)
        assert (len(nodes), {node.domain for node in nodes}) == (count, {"com.microsoft"})
    assert [len(node.inputs) for node in operators(graph, "SkipLayerNormalization")] == [5] * 6  # each with its bias
    assert graph.graph.opset_imports == {"": 20, "com.microsoft": 1}


def test_the_mask_is_bounded_and_made_once_per_number_of_queries() -> None:
    _, graph = for_cuda(CLASSIFIER)
    convert_to_fp16(graph)
    biases = [node.inputs[5] for node in operators(graph, "MultiHeadAttention")]
    assert [str(bias.shape) for bias in biases] == ["[batch,1,sequence,sequence]"] * 2 + ["[batch,1,1,sequence]"]
    assert biases[0] is biases[1]
    for value in graph.graph.initializers.values():
        assert np.isfinite(value.const_value.numpy()).all(), value.name
    assert float(np.float16(MASKED_SCORE)) == MASKED_SCORE


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_rows_without_a_token_leave_their_neighbours_alone(task: Task, tmp_path: Path) -> None:
    model, graph = for_cuda(task)
    convert_to_fp16(graph)
    run = runner(graph, tmp_path / "fp16.onnx")
    batch = probe_batches(model, 32)["holes"]
    mask = batch.attention_mask.copy()
    mask[1] = 0
    found = run(batch._replace(attention_mask=mask))
    assert np.isfinite(found).all()
    assert np.abs(found - reference_outputs(model, batch))[[0, 2]].max() <= 1e-2


def test_inputs_and_outputs_stay_as_they_are() -> None:
    _, before = fused(MEAN)
    _, graph = for_cuda(MEAN)
    convert_to_fp16(graph)
    for ours, theirs in ((graph.graph.inputs, before.graph.inputs), (graph.graph.outputs, before.graph.outputs)):
        assert [(v.name, v.dtype, str(v.shape)) for v in ours] == [(v.name, v.dtype, str(v.shape)) for v in theirs]


def test_weights_and_activations_are_halves_and_pooling_is_not() -> None:
    _, graph = for_cuda(MEAN)
    convert_to_fp16(graph)
    types = {node.op_type: node.outputs[0].dtype for node in graph.graph}
    for name in ("MatMul", "MultiHeadAttention", "SkipLayerNormalization", "LayerNormalization", "BiasGelu", "Gather"):
        assert types[name] == ir.DataType.FLOAT16, name
    for name in ("ReduceSum", "Div", "Clip", "ReduceL2"):
        assert types[name] == ir.DataType.FLOAT, name
    assert operators(graph, "LayerNormalization")[0].attributes["stash_type"].as_int() == 1  # accumulates in FP32
    large = {v.dtype for v in graph.graph.initializers.values() if v.const_value.size > 30}
    assert large == {ir.DataType.FLOAT16}
    to_float = [node for node in operators(graph, "Cast") if node.inputs[0].dtype == ir.DataType.FLOAT16]
    assert len(to_float) == 1  # the encoder's output, for the pooling


def with_an_outlier(model: TaskModel) -> TaskModel:
    """The model with one hidden unit of the last feed-forward that grows beyond half precision, and back."""
    layer = model.encoder.layers[1].feed_forward
    with torch.no_grad():
        layer.up.weight[0].zero_()
        layer.up.bias[0] = 300.0
        layer.down.weight[:, 0] = 300.0
    return model


def test_operators_with_large_values_stay_in_fp32(tmp_path: Path) -> None:
    model = with_an_outlier(toy_model(CLASSIFIER))
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    fuse_for_cuda(graph, CONFIG)
    batches = probe_batches(model, 32)
    kept = find_fp16_overflows(graph, batches.values())
    nodes = {node.outputs[0].name: node.op_type for node in fp16_nodes(graph)}
    # The projection down, and the normalization that reads it: its output is small again.
    assert sorted(nodes[name] for name in kept) == ["MatMul", "SkipLayerNormalization"]
    assert all(80_000 < size < 100_000 for size in kept.values())

    broken = graph.clone()
    convert_to_fp16(broken)
    with pytest.raises(ParityError, match="unpadded"):
        check_cuda_parity(model, runner(broken, tmp_path / "broken.onnx"), 32, fp16=True)

    total = len(fp16_nodes(graph))
    assert convert_to_fp16(graph, kept) == total - 2
    down = operators(graph, "MatMul")
    assert sum(node.outputs[0].dtype == ir.DataType.FLOAT for node in down) == 1
    check_cuda_parity(model, runner(graph, tmp_path / "fp16.onnx"), 32, fp16=True)


def test_weights_count_as_values() -> None:
    model, graph = for_cuda(MEAN)
    assert find_fp16_overflows(graph, probe_batches(model, 32).values()) == {}
    (norm,) = operators(graph, "LayerNormalization")
    scale = norm.inputs[1]
    scale.const_value = ir.tensor(scale.const_value.numpy() * 0 + 9000, name=scale.name)
    assert norm.outputs[0].name in find_fp16_overflows(graph, [])


def test_attention_of_another_kind_is_an_error_with_the_reason() -> None:
    _, graph = fused(MEAN)
    graph = graph.clone()
    operators(graph, "Attention")[1].attributes["is_causal"] = ir.AttrInt64("is_causal", 1)
    with pytest.raises(FusionError) as caught:
        fuse_for_cuda(graph, CONFIG)
    assert "multi_head_attention (expected 3, found 2)" in str(caught.value)
    assert "multi_head_attention at encoder.layers.1.attention: expected attention in both directions" in str(
        caught.value
    )


def test_biases_of_zero(tmp_path: Path) -> None:
    """As initialised, torch leaves out the addition of a bias that is all zero."""
    torch.manual_seed(0)
    model = TaskModel(CONFIG, CLASSIFIER).eval()
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    assert fuse_for_cuda(graph, CONFIG)["bias_gelu"] == {"expected": 3, "found": 3}
    check_cuda_parity(model, runner(graph, tmp_path / "fp32.onnx"), 32, fp16=False)


def test_rows_of_no_numbers_fail_parity() -> None:
    model, _ = fused(CLASSIFIER)

    def softmax_of_infinities(batch: Batch) -> FloatArray:
        outputs = reference_outputs(model, batch)
        outputs[batch.attention_mask.sum(axis=1) == 0] = np.nan
        return outputs

    with pytest.raises(ParityError, match=r"fully masked \(not finite\)"):
        check_cuda_parity(model, softmax_of_infinities, 32, fp16=True)


def test_forms_that_are_made() -> None:
    cuda, cpu = (plan_variants([target], None) for target in ("cuda", "cpu"))
    assert plan_paddings(None, cuda) == ("masked", "unmasked", "packed")
    assert plan_paddings(["masked"], cuda) == ("masked",)
    assert plan_paddings(["packed"], cuda) == ("masked", "packed")
    assert plan_paddings(None, cpu)
    with pytest.raises(ExportError, match="packed graphs are for CUDA"):
        plan_paddings(["packed"], cpu)
    with pytest.raises(ExportError, match="expected padding modes among masked, unmasked, packed, found lengths"):
        plan_paddings(["lengths"], cuda)


@pytest.mark.parametrize(
    ("targets", "precisions", "expected"),
    [
        (["cpu"], None, VariantPlan(("fp32", "int8"), (), ())),
        (["cuda"], None, VariantPlan(("fp32",), ("fp16",), ())),
        (["tensorrt"], None, VariantPlan(("fp32",), (), ("fp16",))),
        (["cpu", "cuda"], None, VariantPlan(("fp32", "int8"), ("fp16",), ())),
        (["cuda"], ["fp32"], VariantPlan(("fp32",), ("fp32",), ())),
        (["cpu", "cuda"], ["int8", "fp16"], VariantPlan(("fp32", "int8"), ("fp16",), ())),
        (["cuda", "tensorrt"], ["fp16", "fp32"], VariantPlan(("fp32",), ("fp32", "fp16"), ("fp32", "fp16"))),
    ],
)
def test_what_is_made(targets: list[str], precisions: list[str] | None, expected: VariantPlan) -> None:
    assert plan_variants(targets, precisions) == expected


@pytest.mark.parametrize(
    ("targets", "precisions", "message"),
    [
        (["cuda"], ["int8"], "FP16 for a GPU: the fused INT8 operators have kernels on the CPU alone"),
        (["cpu", "cuda"], ["int8"], "export with --precision fp16"),
        (["cpu"], ["fp16"], "FP16 is for a GPU: ONNX Runtime's CPU provider has no FP16 matmul"),
        (["tpu"], None, "expected targets among cpu, cuda, tensorrt, found tpu"),
        (["cpu"], ["fp4"], "expected precisions among fp32, fp16, int8, found fp4"),
    ],
)
def test_what_no_target_can_run(targets: list[str], precisions: list[str] | None, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        plan_variants(targets, precisions)
