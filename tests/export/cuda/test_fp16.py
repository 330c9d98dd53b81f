"""FP16 graphs for CUDA: what is converted, what stays in FP32, and that the outputs stay close to PyTorch's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from bert_export.calibration_texts import built_in_calibration
from bert_export.capture import capture
from bert_export.cuda import convert_to_fp16, find_fp16_overflows, fuse_for_cuda
from bert_export.cuda.fp16 import fp16_nodes
from bert_export.cuda.fp16_overflow import SAFE_MAX, overflow_batches
from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import ParityError
from bert_export.fusion import fuse
from bert_export.onnx_graph import operators
from bert_export.parity import probe_batches, reference_outputs
from bert_export.variants import Probe
from bert_models import TaskModel, open_checkpoint
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

from ..toy_models import CLASSIFIER, CONFIG, MEAN, fused, fused_for_cuda, graph_runner, toy_model


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_graph_computes_what_torch_computes_to_fp16_precision(task: Task, tmp_path: Path) -> None:
    model, graph = fused_for_cuda(task)
    convert_to_fp16(graph)
    parity = check_cuda_parity(model, graph_runner(graph, tmp_path / "fp16.onnx"), 32, fp16=True)
    assert 1e-6 < parity["max_abs_error"] <= 1e-2


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_fully_masked_sequence_does_not_change_the_others(task: Task, tmp_path: Path) -> None:
    model, graph = fused_for_cuda(task)
    convert_to_fp16(graph)
    run = graph_runner(graph, tmp_path / "fp16.onnx")
    batch = probe_batches(model, 32)["holes"]
    mask = batch.attention_mask.copy()
    mask[1] = 0
    found = run(batch._replace(attention_mask=mask))
    assert np.isfinite(found).all()
    assert np.abs(found - reference_outputs(model, batch))[[0, 2]].max() <= 1e-2


def test_graph_inputs_and_outputs_keep_their_types() -> None:
    _, before = fused(MEAN)
    _, graph = fused_for_cuda(MEAN)
    convert_to_fp16(graph)
    for actual, expected in ((graph.graph.inputs, before.graph.inputs), (graph.graph.outputs, before.graph.outputs)):
        assert [(v.name, v.dtype, str(v.shape)) for v in actual] == [(v.name, v.dtype, str(v.shape)) for v in expected]


def test_weights_and_activations_become_fp16_and_pooling_stays_fp32() -> None:
    _, graph = fused_for_cuda(MEAN)
    convert_to_fp16(graph)
    types = {node.op_type: node.outputs[0].dtype for node in graph.graph}
    for name in ("MatMul", "Attention", "SkipLayerNormalization", "LayerNormalization", "BiasGelu", "Gather"):
        assert types[name] == ir.DataType.FLOAT16, name
    for name in ("ReduceSum", "Div", "Clip", "ReduceL2"):
        assert types[name] == ir.DataType.FLOAT, name
    assert operators(graph, "LayerNormalization")[0].attributes["stash_type"].as_int() == 1  # accumulates in FP32
    large = {v.dtype for v in graph.graph.initializers.values() if v.const_value.size > 30}
    assert large == {ir.DataType.FLOAT16}
    to_float = [node for node in operators(graph, "Cast") if node.inputs[0].dtype == ir.DataType.FLOAT16]
    assert len(to_float) == 1  # the encoder's output, for the pooling


def plant_outlier(model: TaskModel) -> TaskModel:
    """Let one channel of a feed-forward block grow beyond the range of FP16, and its output shrink again."""
    layer = model.encoder.layers[1].feed_forward
    with torch.no_grad():
        layer.up.weight[0].zero_()
        layer.up.bias[0] = 300.0
        # Unequal: the CPU kernel of SkipLayerNormalization in ONNX Runtime 1.24 cancels equal large numbers to NaN.
        layer.down.weight[:, 0] = torch.linspace(270.0, 300.0, len(layer.down.weight))
    return model


def test_operators_that_overflow_stay_in_fp32(tmp_path: Path) -> None:
    model = plant_outlier(toy_model(CLASSIFIER))
    graph = capture(model)
    fuse(graph, CONFIG, CLASSIFIER)
    fuse_for_cuda(graph, CONFIG)
    overflows = find_fp16_overflows(graph, probe_batches(model, 32).values())
    nodes = {node.outputs[0].name: node.op_type for node in fp16_nodes(graph)}
    # The projection down, and the normalization that reads it: its output is small again.
    assert sorted(nodes[name] for name in overflows) == ["MatMul", "SkipLayerNormalization"]
    assert all(80_000 < maximum < 100_000 for maximum in overflows.values())

    broken = graph.clone()
    convert_to_fp16(broken)
    with pytest.raises(ParityError, match="unpadded"):
        check_cuda_parity(model, graph_runner(broken, tmp_path / "broken.onnx"), 32, fp16=True)

    total = len(fp16_nodes(graph))
    assert convert_to_fp16(graph, overflows) == total - 2
    matmuls = operators(graph, "MatMul")
    assert sum(node.outputs[0].dtype == ir.DataType.FLOAT for node in matmuls) == 1
    check_cuda_parity(model, graph_runner(graph, tmp_path / "fp16.onnx"), 32, fp16=True)


def test_overflow_of_a_projection_inside_attention_is_found(tmp_path: Path) -> None:
    """Neither its weight nor attention's output shows it: queries shrink by as much as keys grow."""
    model = toy_model(MEAN)
    attention = model.encoder.layers[1].attention
    with torch.no_grad():
        for projection, factor in ((attention.key, 2e4), (attention.query, 5e-5)):
            projection.weight[0] *= factor
            projection.bias[0] *= factor
    graph = capture(model)
    fuse(graph, CONFIG, MEAN)
    fuse_for_cuda(graph, CONFIG)
    node = operators(graph, "Attention")[1]
    assert np.abs(node.inputs[1].const_value.numpy()).max() < SAFE_MAX
    (overflow,) = find_fp16_overflows(graph, probe_batches(model, 32).values()).items()
    assert overflow[0] == node.outputs[0].name
    assert overflow[1] > SAFE_MAX
    convert_to_fp16(graph, [overflow[0]])
    check_cuda_parity(model, graph_runner(graph, tmp_path / "fp16.onnx"), 32, fp16=True)


def test_large_weights_count_as_overflows() -> None:
    model, graph = fused_for_cuda(MEAN)
    assert find_fp16_overflows(graph, probe_batches(model, 32).values()) == {}
    (norm,) = operators(graph, "LayerNormalization")
    scale = norm.inputs[1]
    scale.const_value = ir.tensor(scale.const_value.numpy() * 0 + 9000, name=scale.name)
    assert norm.outputs[0].name in find_fp16_overflows(graph, [])


def test_texts_are_measured_with_their_prompt(classifier_checkpoint: Path) -> None:
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(32)
    calibration = built_in_calibration(MEAN, tokenizer)
    probe = Probe(tokenizer=tokenizer, texts=["hello"], texts_record={}, self_test_inputs=[], calibration=calibration)
    batch, *_ = overflow_batches(toy_model(replace(MEAN, prompt="card ")), probe)
    assert batch.input_ids[0, 1:-1].tolist() == tokenizer.token_ids("card hello")


def test_nan_for_a_fully_masked_sequence_fails_parity() -> None:
    model, _ = fused(CLASSIFIER)

    def softmax_of_infinities(batch: Batch) -> FloatArray:
        outputs = reference_outputs(model, batch)
        outputs[batch.attention_mask.sum(axis=1) == 0] = np.nan
        return outputs

    with pytest.raises(ParityError, match=r"fully masked \(not finite\)"):
        check_cuda_parity(model, softmax_of_infinities, 32, fp16=True)
