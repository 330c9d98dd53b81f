"""Tests that need a GPU; skipped with the reason where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_runtime import InputError, Manifest, load, verify
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason
from bert_runtime.errors import CudaUnavailableError
from bert_runtime.gpu.cuda_provider import fallback_operators
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import NO_BUCKETS, ShapeBuckets
from bert_runtime.loading import open_variant
from bert_runtime.tokenization import Batch

pytestmark = pytest.mark.gpu

TEXTS = ["how are you", "see you later", "where is my card, and who has it now?", "hello"] * 5


@pytest.fixture(scope="module")
def bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier for CUDA in FP32 and FP16, in every padding mode, and for TensorRT."""
    if reason := cuda_unavailable_reason():
        pytest.skip(f"needs a GPU: {reason}")
    from bert_export import export

    folder = tmp_path_factory.mktemp("bundles") / "cuda"
    targets, precisions = ("cuda", "tensorrt"), ("fp32", "fp16")
    export(classifier_checkpoint, folder, targets=targets, precisions=precisions)
    try:
        load(folder, device="cuda")
    except CudaUnavailableError as error:
        pytest.skip(f"needs a GPU: {error}")
    return folder


def raw_outputs(bundle: Path, device: Device, precision: str) -> np.ndarray:
    """Return the CUDA variant's raw outputs for `TEXTS`, computed on `device`."""
    manifest = Manifest.read(bundle)
    model = open_variant(bundle, manifest, manifest.variant(precision, "cuda"), device)
    return np.concatenate([outputs.flat for outputs in model.outputs(TEXTS)])


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 2e-2)])
def test_the_gpu_computes_what_the_cpu_computes(bundle: Path, precision: str, tolerance: float) -> None:
    gpu, cpu = (raw_outputs(bundle, device, precision) for device in (Device(kind="cuda"), CPU))
    assert np.abs(gpu - cpu).max() <= tolerance


def test_verify_runs_the_self_tests_on_the_gpu(bundle: Path) -> None:
    checks = {check.name: check for check in verify(bundle)}
    for name in ("fp32 cuda", "fp16 cuda", "fp32 cuda unmasked", "fp16 cuda unmasked", "fp16 cuda packed"):
        name = f"self-test {name}"
        assert checks[name].passed, checks[name].detail
        assert "evaluated on the CPU" not in checks[name].detail


def sessions(bundle: Path) -> tuple[CudaSession, CudaSession]:
    """Open a session that captures CUDA graphs, and one that does not."""
    manifest = Manifest.read(bundle)
    file = bundle / manifest.variant("fp16", "cuda").model.file
    device = Device(kind="cuda")
    return CudaSession(file, manifest, device), CudaSession(file, manifest, device, ShapeBuckets(batch_sizes=()))


def test_captured_graphs_compute_what_single_operators_compute(bundle: Path) -> None:
    captured, plain = sessions(bundle)
    generator = np.random.default_rng(0)
    for num_padding in range(4):
        for shape in ((1, 9), (3, 20), (1, 30)):
            ids = generator.integers(0, 50, shape)
            mask = (np.arange(shape[1]) < shape[1] - num_padding).astype(np.int64) * np.ones(
                (shape[0], 1), dtype=np.int64
            )
            batch = Batch(ids, mask, np.zeros_like(ids))
            assert np.abs(captured.run(batch) - plain.run(batch)).max() <= 5e-3


def test_sequences_without_tokens_give_finite_outputs(bundle: Path) -> None:
    ids = np.ones((2, 8), dtype=np.int64)
    mask = np.array([[0] * 8, [1] * 8])
    for session in sessions(bundle):
        assert np.isfinite(session.run(Batch(ids, mask, np.zeros_like(ids)))).all()


@pytest.mark.parametrize("padding", ["packed", "unmasked"])
def test_all_padding_modes_compute_the_same_outputs(bundle: Path, padding: str) -> None:
    manifest = Manifest.read(bundle)
    masked = manifest.variant("fp16", "cuda")
    device = Device(kind="cuda")
    tokens = min(128, manifest.max_tokens)
    ids = np.random.default_rng(0).integers(0, 50, (2048 // tokens, tokens))
    mask = np.ones_like(ids) if padding == "unmasked" else np.tril(np.ones_like(ids))
    batch = Batch(ids, mask, np.zeros_like(ids))
    plain, other = (
        CudaSession(bundle / variant.model.file, manifest, device, NO_BUCKETS)
        for variant in (masked, manifest.padding_variants(masked)[padding])
    )
    assert np.abs(plain.run(batch) - other.run(batch)).max() <= 5e-3
    assert np.abs(load(bundle, device="cuda").session.run(batch) - plain.run(batch)).max() <= 5e-3


def test_tensorrt_computes_what_the_cpu_computes(bundle: Path) -> None:
    try:
        model = load(bundle, device="tensorrt")
    except CudaUnavailableError as error:
        pytest.skip(f"needs TensorRT: {error}")
    expected = np.concatenate([outputs.flat for outputs in load(bundle, device="cpu").outputs(TEXTS)])
    assert np.abs(np.concatenate([outputs.flat for outputs in model.outputs(TEXTS)]) - expected).max() <= 2e-2


def test_every_operator_runs_on_the_gpu(bundle: Path) -> None:
    for session in sessions(bundle):
        assert fallback_operators(session._session) == {}


def test_ids_out_of_range_are_refused(bundle: Path) -> None:
    ids = np.full((1, 8), 10**6)
    with pytest.raises(InputError, match="input_ids must lie in"):
        sessions(bundle)[0].run(Batch(ids, np.ones_like(ids), np.zeros_like(ids)))


@pytest.mark.parametrize(("padding", "kernel"), [("masked", "EFFICIENT_ATTENTION"), ("unmasked", "FLASH_ATTENTION")])
def test_attention_runs_fused(bundle: Path, padding: str, kernel: str) -> None:
    """ONNX Runtime prints the kernel that it chose; the toy model's heads have 8 channels, as fused kernels need."""
    code = f"""
import numpy as np
from bert_runtime import load
from bert_runtime.tokenization import Batch
model = load({str(bundle)!r}, device="cuda")
tokens = min(128, model.manifest.max_tokens)
ids = np.ones((1 if {padding!r} == "masked" else 2048 // tokens, tokens), dtype=np.int64)
model.session.run(Batch(ids, ids, np.zeros_like(ids)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f"SdpaKernel={kernel}" in done.stdout + done.stderr
