"""The graph for TensorRT: standard operators only, and parity with PyTorch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bert_export import export, tensorrt
from bert_export.cuda.fp16_overflow import find_fp16_overflows
from bert_export.errors import ExportError, FusionError
from bert_export.onnx_graph import operators
from bert_export.parity import check_parity, probe_batches
from bert_export.tensorrt import can_be_fp16, decompose_attention
from bert_runtime import Manifest, load, verify
from bert_runtime.devices import CPU
from bert_runtime.loading import open_variant
from bert_runtime.tasks import Task

from .toy_models import CLASSIFIER, CONFIG, MEAN, fused, graph_runner


def decomposed(task: Task) -> tuple[Any, ir.Model]:
    model, graph = fused(task)
    graph = graph.clone()
    counts = decompose_attention(graph, CONFIG)
    assert counts == {"attention_spelled_out": {"expected": 3, "found": 3}}
    return model, graph


@pytest.mark.parametrize("task", [CLASSIFIER, MEAN], ids=["classifier", "mean"])
def test_graph_computes_what_torch_computes(task: Task, tmp_path: Path) -> None:
    model, graph = decomposed(task)
    run = graph_runner(graph, tmp_path / "tensorrt.onnx")
    assert 0 < check_parity(model, run, 32)["max_abs_error"] <= 1e-5


def test_graph_has_standard_operators_only(tmp_path: Path) -> None:
    _, graph = decomposed(CLASSIFIER)
    assert {node.domain for node in graph.graph} == {""}
    assert dict(graph.opset_imports) == {"": 20}
    ir.save(graph, tmp_path / "tensorrt.onnx")
    onnx.checker.check_model(tmp_path / "tensorrt.onnx", full_check=True)


def test_attention_of_unknown_shape_is_an_error() -> None:
    graph = fused(CLASSIFIER)[1].clone()
    node = next(node for node in graph.graph if node.op_type == "Attention")
    node.inputs[0].shape = None  # type: ignore[union-attr] # the query
    with pytest.raises(FusionError, match=r"attention_spelled_out \(expected 3, found 2\).*operands of known shape"):
        decompose_attention(graph, CONFIG)


@pytest.fixture(scope="module")
def bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "tensorrt"
    export(classifier_checkpoint, folder, targets=("tensorrt",), precisions=("fp16", "fp32"))
    return folder


def test_both_precisions_share_one_graph(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    variants = manifest.variants_for("tensorrt")
    assert [(variant.title, variant.model.file, variant.opset) for variant in variants] == [
        ("fp32 tensorrt", "model.tensorrt.onnx", 20),
        ("fp16 tensorrt", "model.tensorrt.onnx", 20),
    ]
    fp32, fp16 = variants
    assert fp32.self_test.outputs == fp16.self_test.outputs
    assert fp32.self_test.tolerance == 1e-4
    assert fp16.self_test.tolerance >= 2e-3
    assert "not TensorRT" in fp16.evaluated_on
    assert "FP16 for a GPU" in manifest.default_reason
    texts = ["how are you", "where is my card, and who has it?"]
    expected, found = (
        np.array([output.flat for output in open_variant(bundle, manifest, variant, CPU).outputs(texts)])
        for variant in (manifest.variant("fp32"), fp16)
    )
    assert np.abs(expected - found).max() <= 1e-5


def test_verify_runs_the_graph_on_the_cpu(bundle: Path) -> None:
    checks = {check.name: check for check in verify(bundle)}
    for precision in ("fp32", "fp16"):
        check = checks[f"self-test {precision} tensorrt"]
        assert check.passed
        assert check.detail.endswith("evaluated on the CPU, since TensorRT is not available")
    assert load(bundle).session.device_name.endswith(" threads")


@pytest.mark.parametrize(
    ("precisions", "made"),
    [(None, ["fp32"]), (("fp16", "fp32"), ["fp32"]), (("fp16",), [])],
    ids=["auto", "both", "fp16"],
)
def test_values_too_large_for_fp16_leave_fp32_alone(
    classifier_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precisions: tuple[str, ...] | None,
    made: list[str],
) -> None:
    monkeypatch.setattr(tensorrt, "find_fp16_overflows", lambda graph, batches, can_be_fp16: {"linear": 9e4})
    progress: list[str] = []
    reason = "1 operators have values up to 9e+04, too large for TensorRT in FP16"

    def export_it() -> Manifest:
        targets = ("tensorrt",)
        return export(
            classifier_checkpoint, tmp_path / "b", targets=targets, precisions=precisions, progress=progress.append
        )

    if made:
        assert [variant.precision for variant in export_it().variants_for("tensorrt")] == made
        assert f"{reason}: making FP32 alone" in progress
    else:
        with pytest.raises(ExportError) as caught:
            export_it()
        assert str(caught.value) == f"{reason}; leave --precision out, or give fp32 as well"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "task",
    [CLASSIFIER, MEAN, *(replace(MEAN, pooling=pooling) for pooling in ("max", "attention"))],
    ids=["classifier", "mean", "max", "attention"],
)
def test_masked_scores_are_no_overflow(task: Task) -> None:
    """Other scores are: products of queries and keys may overflow, which the fused operator does not show."""
    model, graph = decomposed(task)
    batches = [batch for batch in probe_batches(model, 32).values() if not batch.attention_mask.all()]
    assert find_fp16_overflows(graph, batches, can_be_fp16) == {}
    for value in graph.graph.initializers.values():
        if str(value.name).startswith("attention.scale"):
            value.const_value = ir.tensor(np.array(1e3, dtype=np.float32), name=value.name)
    assert find_fp16_overflows(graph, batches, can_be_fp16)


@pytest.mark.parametrize("norm", [1e3, 1e-3])
def test_sums_of_pooling_may_overflow(norm: float) -> None:
    """For CUDA they stay in FP32; of TensorRT, no operator does."""
    model, graph = decomposed(replace(MEAN, normalize=False))
    gains = [norm_node.inputs[1] for norm_node in operators(graph, "LayerNormalization")]
    gains[-1].const_value = ir.tensor(np.full(24, norm, dtype=np.float32), name=gains[-1].name)
    batches = [probe_batches(model, 32)["longest"]]
    overflows = find_fp16_overflows(graph, batches, can_be_fp16)
    nodes = {str(node.outputs[0].name): node.op_type for node in graph.graph}
    assert {nodes[name] for name in overflows} == ({"ReduceSum", "Div"} if norm > 1 else set())
    assert find_fp16_overflows(graph, batches) == {}
