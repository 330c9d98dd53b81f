"""Bundles for CUDA on the command line, on a machine without CUDA."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from bert_runtime import BundleError, Manifest, load, loading
from bert_runtime.devices import Device
from bert_runtime.errors import CudaUnavailableError
from bert_runtime.gpu.shape_buckets import ShapeBuckets
from bert_runtime.installation import install_command
from bert_runtime.tokenization import Batch
from bert_runtime.variant_choice import chosen_variant

Run = Callable[..., Result]
CopyBundle = Callable[..., Path]

TEXTS = ["how are you", "see you later", "where is my card"]


@pytest.fixture(scope="session")
def both_bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`classifier_checkpoint` exported for the CPU in FP32 and for CUDA in FP32 and FP16, in every padding mode."""
    from bert_export import export

    folder = tmp_path_factory.mktemp("bundles") / "both"
    export(
        classifier_checkpoint,
        folder,
        targets=("cpu", "cuda"),
        precisions=("fp32", "fp16"),
        paddings=("packed", "unmasked", "packed"),
    )
    return folder


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine appear to have no CUDA."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])


def test_export_for_cpu_and_cuda(both_bundle: Path) -> None:
    manifest = json.loads((both_bundle / "bundle.json").read_text(encoding="utf-8"))
    keys = ("target", "precision", "form")
    assert [(*(variant[key] for key in keys), variant["model"]["file"]) for variant in manifest["variants"]] == [
        ("cpu", "fp32", "masked", "model.fp32.onnx"),
        ("cuda", "fp32", "masked", "model.cuda.fp32.onnx"),
        ("cuda", "fp16", "masked", "model.fp16.onnx"),
        ("cuda", "fp32", "unmasked", "model.cuda.fp32.unmasked.onnx"),
        ("cuda", "fp16", "unmasked", "model.fp16.unmasked.onnx"),
        ("cuda", "fp32", "packed", "model.cuda.fp32.packed.onnx"),
        ("cuda", "fp16", "packed", "model.fp16.packed.onnx"),
    ]
    assert manifest["default_precision"] == "fp32"
    assert "FP16 for a GPU: the fused INT8 operators have kernels on the CPU alone" in manifest["default_reason"]
    assert [tensor["below"] for tensor in manifest["inputs"]][1:] == [2, 2]
    for variant in manifest["variants"][1:]:
        assert variant["parity"]["max_abs_error"] <= variant["parity"]["tolerance"]
        assert variant["fusions"]["attention_with_projection"] == {"expected": 2, "found": 2}
        assert "not on a GPU" in variant["evaluated_on"]
        assert ("which CUDA alone has" in variant["evaluated_on"]) == (variant["form"] == "packed")
        assert variant["latency_ms"] == {}
        assert variant["drift"]["max_abs_difference"] <= 2e-2


def test_padding_modes_share_weights(both_bundle: Path) -> None:
    variants = Manifest.read(both_bundle).variants
    shared = {variant.precision: variant.external_data for variant in variants if variant.target == "cuda"}
    assert {precision: asset and asset.file for precision, asset in shared.items()} == {
        "fp32": "model.cuda.fp32.onnx.data", "fp16": "model.fp16.onnx.data",
    }  # fmt: skip
    fp32, fp16 = shared["fp32"], shared["fp16"]
    assert fp32 is not None
    assert fp16 is not None
    assert all(variant.external_data == shared[variant.precision] for variant in variants[1:])
    weights = variants[0].external_data
    assert weights is not None
    assert all(variant.model.size_bytes < 0.22 * weights.size_bytes for variant in variants[1:])
    assert fp32.size_bytes == weights.size_bytes
    assert fp16.size_bytes == weights.size_bytes // 2


def test_inspect_shows_targets(run: Run, both_bundle: Path) -> None:
    lines = [" ".join(line.split()) for line in run("inspect", both_bundle).stdout.splitlines()]
    assert any(line.startswith("fp32 cuda model.cuda.fp32.onnx + ") and line.endswith("opset 20") for line in lines)
    assert any(line.startswith("fp16 cuda model.fp16.onnx + model.fp16.onnx.data, ") for line in lines)
    assert any(line.startswith("fp16 cuda packed model.fp16.packed.onnx + model.fp16.onnx.data, ") for line in lines)
    assert sum(line.startswith("evaluated on: the CPU provider") for line in lines) == 6


@pytest.mark.usefixtures("no_cuda")
def test_verify_runs_cuda_variants_on_the_cpu(run: Run, both_bundle: Path) -> None:
    result = run("verify", both_bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    remarks = [
        line
        for line in result.stdout.splitlines()
        if line.endswith("evaluated on the CPU, since CUDA is not available")
    ]
    names = [" ".join(line.partition("max")[0].split()[2:]) for line in remarks]
    assert names == ["fp32 cuda", "fp16 cuda", "fp32 cuda unmasked", "fp16 cuda unmasked"]
    skipped = [
        line for line in result.stdout.splitlines() if line.endswith("needs CUDA, since the CPU lacks its operators")
    ]
    assert [line.split()[2:5] for line in skipped] == [["fp32", "cuda", "packed"], ["fp16", "cuda", "packed"]]


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_unavailable_cuda_is_an_error(run: Run, both_bundle: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "hello", "label": "greeting"}\n', encoding="utf-8")
    result = run(command, both_bundle, "hello" if command == "predict" else tmp_path / "data.jsonl", "--device", "cuda")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "CUDA was asked for and cannot be used: " in result.stderr
    assert install_command("gpu") in result.stderr


@pytest.mark.usefixtures("no_cuda")
def test_auto_device_is_cpu_without_cuda(run: Run, both_bundle: Path) -> None:
    expected = [result.label for result in load(both_bundle, device="cpu")(TEXTS)]
    result = run("predict", both_bundle, *TEXTS, "--json")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == expected
    assert load(both_bundle).session.device_name.endswith(" threads")


def test_auto_device_logs_why_cuda_failed(
    both_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_driver(path: Path, manifest: object, device: Device, shapes: object) -> None:
        raise CudaUnavailableError(f"{path.name} on {device}: no driver")

    monkeypatch.setattr("bert_runtime.variant_choice.cuda_unavailable_reason", lambda: None)
    monkeypatch.setattr(loading, "CudaSession", no_driver)
    model = load(both_bundle)
    assert model.variant is not None
    assert (model.variant.target, model.variant.precision) == ("cpu", "fp32")
    assert [r.getMessage() for r in caplog.records] == ["running on the CPU: model.fp16.onnx on cuda:0: no driver"]
    with pytest.raises(CudaUnavailableError, match=r"model\.cuda\.fp32\.onnx on cuda:3: no driver"):
        load(both_bundle, device="cuda:3", precision="fp32")


def test_the_variant_that_is_tried_first(both_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_variant(both_bundle, device="cpu") == ("cpu", "fp32")
    monkeypatch.setattr("bert_runtime.variant_choice.cuda_unavailable_reason", lambda: None)
    assert chosen_variant(both_bundle) == chosen_variant(both_bundle, device="cuda:3") == ("cuda", "fp16")
    assert chosen_variant(both_bundle, "fp32") == ("cuda", "fp32")
    assert chosen_variant(both_bundle, device="cpu") == ("cpu", "fp32")


def test_auto_device_is_cpu_for_bundles_without_cuda_variants(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_runtime.variant_choice.cuda_unavailable_reason", lambda: None)
    assert load(classifier_bundle, precision="fp32").session.device_name.endswith(" threads")


def test_fp16_on_the_cpu_is_an_error(both_bundle: Path) -> None:
    with pytest.raises(BundleError, match="the bundle has no variant 'fp16'; it has fp32"):
        load(both_bundle, device="cpu", precision="fp16")


def test_fp16_outputs_are_close_to_fp32(both_bundle: Path) -> None:
    """Evaluated by the CPU provider, in batches with padding."""
    from bert_runtime.bundle.manifest import Manifest
    from bert_runtime.devices import CPU
    from bert_runtime.loading import open_variant

    manifest = Manifest.read(both_bundle)
    models = [
        open_variant(both_bundle, manifest, variant, CPU)
        for variant in manifest.variants
        if variant.padding != "packed"
    ]
    fp32, *others = (np.array([row.flat for row in model.outputs(TEXTS)]) for model in models)
    cuda, fp16, cuda_unmasked, fp16_unmasked = (np.abs(fp32 - other).max() for other in others)
    assert max(cuda, cuda_unmasked) <= 1e-5
    assert 0 < max(fp16, fp16_unmasked) <= 2e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "cuda", "--precision", "int8"], "FP16 for a GPU: the fused INT8 operators"),
        (["--precision", "fp16"], "FP16 is for a GPU: "),
        (["--padding", "packed"], "packed graphs are for CUDA, whose operators they need; export with --target cuda"),
    ],
)
def test_unsupported_precision_of_a_target_is_an_error(
    run: Run, classifier_checkpoint: Path, output_folder: Path, options: list[str], message: str
) -> None:
    result = run("export", classifier_checkpoint, output_folder / "bundle", *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert list(output_folder.iterdir()) == []


def test_unknown_device_is_an_error(run: Run, both_bundle: Path) -> None:
    result = run("predict", both_bundle, "hello", "--device", "tpu")
    assert result.exit_code == 1
    assert "expected a device of auto, cpu, cuda[:N] or tensorrt[:N], found 'tpu'" in result.stderr


def test_graphs_of_padding_modes_are_opened_on_demand(both_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int | None]] = []

    def session(path: Path, manifest: Manifest, device: Device, shapes: ShapeBuckets | None) -> Any:
        opened.append((path.name, None if shapes is None else shapes.alignment))
        return SimpleNamespace(threads=1, device_name=str(device), run=lambda batch: opened[-1])

    monkeypatch.setattr(loading, "CudaSession", session)
    model = load(both_bundle, device="cuda")
    assert model.variant is not None
    assert model.variant.padding == "masked"
    ids = np.ones((32, 128), dtype=np.int64)
    model.session.run(Batch(ids, np.tril(ids)[:, ::-1].copy(), ids))
    assert opened == [("model.fp16.onnx", None)]
    model.session.run(Batch(ids, np.tril(ids), ids))
    assert opened[1:] == [("model.fp16.packed.onnx", 1)]
    model.session.run(Batch(ids, ids, ids))
    assert opened[2:] == [("model.fp16.unmasked.onnx", 1)]


def test_load_checks_the_graphs_of_all_padding_modes(copy_bundle: CopyBundle, both_bundle: Path) -> None:
    copied = copy_bundle(both_bundle)
    (copied / "model.fp16.packed.onnx").unlink()
    with pytest.raises(BundleError, match=r"model\.fp16\.packed\.onnx: the manifest names this file"):
        load(copied, device="cuda")
