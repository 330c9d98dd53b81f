"""The bf16 variant: what is rounded, what stays in FP32, and what runs where there are no bf16 kernels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from bert_export import bf16
from bert_export.exporter import export
from bert_export.kernel_functions import BF16_FUNCTIONS
from bert_runtime import Manifest, load
from bert_runtime.cpu.native_kernels import has_bf16_kernels
from bert_runtime.verification import verify

TEXTS = ["hello there", "where is my card ?", "good bye , see you soon ."]
BFLOAT16 = onnx.TensorProto.BFLOAT16


@pytest.fixture(scope="module")
def bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bf16") / "bundle"
    export(classifier_checkpoint, folder, precisions=["bf16"])
    return folder


def test_manifest_states_the_variant(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    variant = manifest.variant("bf16")
    assert [item.precision for item in manifest.variants] == ["fp32", "bf16"]
    assert (variant.target, variant.instruction_set, variant.faithful) == ("cpu", "bf16", has_bf16_kernels())
    assert variant.fusions["bf16_matmul"]["found"] == variant.fusions["bf16_matmul"]["expected"] > 0
    assert variant.functions["Bf16SelfAttention"] == manifest.variant("fp32").functions["SelfAttention"]
    assert 0 < variant.drift["max_abs_difference"] < 0.05
    assert bool(variant.evaluated_on) == (not has_bf16_kernels())
    assert ("bf16 runs" if has_bf16_kernels() else "bf16 was evaluated on a") in manifest.default_reason
    assert all(check.passed for check in verify(bundle))


def test_weights_of_the_encoder_alone_are_bfloat16(bundle: Path) -> None:
    graph = onnx.load(bundle / "model.bf16.onnx").graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    projections = {node.input[1] for node in graph.node if node.op_type.startswith("Bf16Linear")}
    assert projections
    assert {name for name, data_type in types.items() if data_type == BFLOAT16} == projections
    assert {node.op_type for node in graph.node if node.op_type.startswith("Bf16")} <= BF16_FUNCTIONS.keys()


def test_large_embeddings_are_bfloat16(
    classifier_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bf16, "MIN_ELEMENTS", 100)
    export(classifier_checkpoint, tmp_path / "bundle", precisions=["bf16"])
    graph = onnx.load(tmp_path / "bundle" / "model.bf16.onnx").graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert [types[node.input[1]] for node in graph.node if node.op_type == "EmbedNorm"] == [BFLOAT16]


def test_logits_are_close_to_fp32_with_and_without_kernels(bundle: Path) -> None:
    expected = load(bundle, precision="fp32").outputs(TEXTS)
    for kernels in (True, False):
        outputs = load(bundle, precision="bf16", kernels=kernels).outputs(TEXTS)
        difference = max(float(np.abs(a.flat - b.flat).max()) for a, b in zip(outputs, expected, strict=True))
        assert 0 < difference < 0.05


def test_turning_kernels_off_is_warned_of(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bert_runtime.variant_choice.has_bf16_kernels", lambda: True)
    load(bundle, precision="bf16")
    load(bundle, precision="fp32", kernels=False)
    assert "turned off" not in caplog.text
    load(bundle, precision="bf16", kernels=False)
    assert "bf16 runs as FP32 here: native kernels, which it needs, are turned off" in caplog.text


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_fp32_is_the_default_without_bf16_kernels(
    precision: str,
    bundle: Path,
    copy_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    changed = copy_bundle(bundle, lambda manifest: manifest.update(default_precision="bf16"))
    monkeypatch.setattr("bert_runtime.variant_choice.has_bf16_kernels", lambda: False)
    model = load(changed, precision=precision)
    assert model.variant.precision == ("fp32" if precision == "auto" else "bf16")
    assert ("bf16 runs as FP32 here" in caplog.text) == (precision == "bf16")
    monkeypatch.setattr("bert_runtime.variant_choice.has_bf16_kernels", lambda: True)
    assert load(changed).variant.precision == "bf16"
