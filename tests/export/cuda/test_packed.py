"""Packed graphs for CUDA: what is packed, and that the wiring is right, without a GPU."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.cuda import convert_to_fp16, decompose_packed_ops, pack
from bert_export.cuda.parity import check_cuda_parity
from bert_export.errors import FusionError, ParityError
from bert_export.onnx_graph import insert_before, operators
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task
from bert_runtime.tokenization import Batch

from ..toy_models import CLASSIFIER, CONFIG, MEAN, fused_for_cuda, graph_runner

PACKING = ("RemovePadding", "PackedMultiHeadAttention", "RestorePadding", "MultiHeadAttention")


@pytest.mark.parametrize("fp16", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_graph_computes_what_torch_computes(task: Task, fp16: bool, tmp_path: Path) -> None:
    model, graph = fused_for_cuda(task)
    if fp16:
        convert_to_fp16(graph)
    pack(graph, CONFIG)
    run = graph_runner(decompose_packed_ops(graph), tmp_path / "packed.onnx")
    parity = check_cuda_parity(model, run, 32, fp16=fp16, padding="packed")
    assert 0 < parity["max_abs_error"] <= (1e-2 if fp16 else 1e-5)


@pytest.mark.parametrize(("task", "counts"), [(CLASSIFIER, (1, 3, 2, 0)), (MEAN, (1, 3, 1, 0))])
def test_padding_is_restored_where_an_operator_needs_it(task: Task, counts: tuple[int, ...]) -> None:
    _, graph = fused_for_cuda(task)
    assert pack(graph, CONFIG) == {"packed_attention": {"expected": counts[1], "found": counts[1]}}
    assert tuple(len(operators(graph, name)) for name in PACKING) == counts
    assert {node.domain for name in PACKING for node in operators(graph, name)} == {"com.microsoft"}
    (remove,) = operators(graph, "RemovePadding")
    assert remove.inputs[1].dtype == ir.DataType.INT32
    assert [str(value.shape) for value in remove.outputs[:3]] == ["[tokens,24]", "[batch,sequence]", "[batch_plus_one]"]
    for node in operators(graph, "PackedMultiHeadAttention"):
        assert node.inputs[1:3] == (None, None)
        assert node.inputs[3].const_value.shape == (3 * CONFIG.hidden_size,)
        assert list(node.inputs[4:]) == list(remove.outputs[1:3])


def test_matmuls_of_layers_run_on_packed_tokens() -> None:
    _, graph = fused_for_cuda(MEAN)
    pack(graph, CONFIG)
    matmuls = operators(graph, "MatMul")
    assert len(matmuls) == 4 * 3
    assert {len(node.inputs[0].shape) for node in matmuls} == {2}


def test_weights_ordered_by_head_are_computed_from_the_shared_ones() -> None:
    """ONNX Runtime folds what reads constants alone as it opens the graph."""
    _, graph = fused_for_cuda(MEAN)
    stored = {name for name, value in graph.graph.initializers.items() if value.const_value.size > 1000}
    pack(graph, CONFIG)
    assert {name for name, value in graph.graph.initializers.items() if value.const_value.size > 1000} == stored
    for node in operators(graph, "Transpose"):
        (reshape,) = (value.producer() for value in node.inputs)
        assert all(value.const_value is not None for value in reshape.inputs)


def test_left_padding_fails_parity(tmp_path: Path) -> None:
    model, graph = fused_for_cuda(CLASSIFIER)
    pack(graph, CONFIG)
    with pytest.raises(ParityError, match="left-padded"):
        check_cuda_parity(model, graph_runner(decompose_packed_ops(graph), tmp_path / "packed.onnx"), 32, fp16=False)


def test_parity_of_a_packed_graph_is_checked_with_right_padding_alone() -> None:
    model, _ = fused_for_cuda(CLASSIFIER)
    seen: list[Batch] = []

    def run(batch: Batch) -> FloatArray:
        seen.append(batch)
        return np.full((len(batch.input_ids), 3), np.nan, dtype=np.float32)

    with pytest.raises(ParityError, match=r"that are unpadded .*right-padded .*fully masked"):
        check_cuda_parity(model, run, 32, fp16=False, padding="packed")
    assert all((np.diff(batch.attention_mask, axis=1) <= 0).all() for batch in seen)
    assert not seen[-1].attention_mask[0].any()


def test_layer_that_cannot_be_packed_is_an_error() -> None:
    _, graph = fused_for_cuda(MEAN)
    node = operators(graph, "Attention")[1]
    (reversed_,) = insert_before(node, "Identity", [node.inputs[0]], like=node.inputs[0])
    node.replace_input_with(0, reversed_)
    with pytest.raises(FusionError, match=r"packed_attention \(expected 3, found 1\)"):
        pack(graph, CONFIG)


def test_graph_without_a_mask_input_is_an_error_with_the_reason() -> None:
    _, graph = fused_for_cuda(MEAN)
    next(value for value in graph.graph.inputs if value.name == "attention_mask").name = "mask"
    with pytest.raises(FusionError, match=r"found 0\)\. packed_attention: expected an input attention_mask"):
        pack(graph, CONFIG)


@pytest.mark.parametrize("fp16", [False, True], ids=["fp32", "fp16"])
def test_onnxruntime_accepts_the_graph_but_has_no_cpu_kernels(fp16: bool, tmp_path: Path) -> None:
    """It checks the operators' inputs, types and shapes before it looks for kernels."""
    import onnxruntime

    _, graph = fused_for_cuda(CLASSIFIER)
    if fp16:
        convert_to_fp16(graph)
    pack(graph, CONFIG)
    ir.save(graph, tmp_path / "packed.onnx")
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED : .* for \S*(RemovePadding|RestorePadding)"):
        onnxruntime.InferenceSession(tmp_path / "packed.onnx", providers=["CPUExecutionProvider"])
