"""What only a GPU can show. Skipped, with the reason, where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_runtime import InputError, Manifest, load, verify
from bert_runtime.devices import CPU, Device, cuda_unavailable_reason
from bert_runtime.errors import CudaUnavailableError
from bert_runtime.gpu.cuda_session import CudaSession, fallback_operators
from bert_runtime.gpu.shape_buckets import NO_BUCKETS, ShapeBuckets
from bert_runtime.loading import open_variant
from bert_runtime.tokenization import Batch

pytestmark = pytest.mark.gpu

TEXTS = ["how are you", "see you later", "where is my card, and who has it now?", "hello"] * 5


@pytest.fixture(scope="module")
def bundle(classifier_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier for CUDA in FP32 and FP16, in every padding mode, and for TensorRT."""
    if problem := cuda_unavailable_reason():
        pytest.skip(f"needs a GPU: {problem}")
    from bert_export import export

    folder = tmp_path_factory.mktemp("bundles") / "cuda"
    targets, precisions = ("cuda", "tensorrt"), ("fp32", "fp16")
    export(classifier_checkpoint, folder, targets=targets, precisions=precisions)
    try:
        load(folder, device="cuda")
    except CudaUnavailableError as error:
        pytest.skip(f"needs a GPU: {error}")
    return folder


def rows(bundle: Path, device: Device, precision: str) -> np.ndarray:
    """Raw outputs for `TEXTS` of the variant for CUDA, on either device."""
    manifest = Manifest.read(bundle)
    model = open_variant(bundle, manifest, manifest.variant(precision, "cuda"), device)
    return np.concatenate([each.flat for each in model.outputs(TEXTS)])


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 2e-2)])
def test_the_gpu_computes_what_the_cpu_computes(bundle: Path, precision: str, tolerance: float) -> None:
    gpu, cpu = (rows(bundle, device, precision) for device in (Device(kind="cuda"), CPU))
    assert np.abs(gpu - cpu).max() <= tolerance


def test_verify_runs_the_self_tests_there(bundle: Path) -> None:
    checks = {check.name: check for check in verify(bundle)}
    for name in ("fp32 cuda", "fp16 cuda", "fp32 cuda unmasked", "fp16 cuda unmasked", "fp16 cuda packed"):
        name = f"self-test {name}"
        assert checks[name].passed, checks[name].detail
        assert "evaluated on the CPU" not in checks[name].detail


def sessions(bundle: Path) -> tuple[CudaSession, CudaSession]:
    """One that captures CUDA graphs, and one that does not."""
    manifest = Manifest.read(bundle)
    file = bundle / manifest.variant("fp16", "cuda").model.file
    device = Device(kind="cuda")
    return CudaSession(file, manifest, device), CudaSession(file, manifest, device, ShapeBuckets(batch_sizes=()))


def test_captured_graphs_answer_as_the_operators_do(bundle: Path) -> None:
    captured, plain = sessions(bundle)
    generator = np.random.default_rng(0)
    for turn in range(4):
        for shape in ((1, 9), (3, 20), (1, 30)):
            ids = generator.integers(0, 50, shape)
            mask = (np.arange(shape[1]) < shape[1] - turn).astype(np.int64) * np.ones((shape[0], 1), dtype=np.int64)
            batch = Batch(ids, mask, np.zeros_like(ids))
            assert np.abs(captured.run(batch) - plain.run(batch)).max() <= 5e-3


def test_rows_without_a_token_give_numbers(bundle: Path) -> None:
    ids = np.ones((2, 8), dtype=np.int64)
    mask = np.array([[0] * 8, [1] * 8])
    for session in sessions(bundle):
        assert np.isfinite(session.run(Batch(ids, mask, np.zeros_like(ids)))).all()


@pytest.mark.parametrize("form", ["packed", "unmasked"])
def test_every_form_answers_alike(bundle: Path, form: str) -> None:
    manifest = Manifest.read(bundle)
    masked = manifest.variant("fp16", "cuda")
    device = Device(kind="cuda")
    tokens = min(128, manifest.max_tokens)
    ids = np.random.default_rng(0).integers(0, 50, (2048 // tokens, tokens))
    mask = np.ones_like(ids) if form == "unmasked" else np.tril(np.ones_like(ids))
    batch = Batch(ids, mask, np.zeros_like(ids))
    plain, other = (
        CudaSession(bundle / each.model.file, manifest, device, NO_BUCKETS)
        for each in (masked, manifest.padding_variants(masked)[form])
    )
    assert np.abs(plain.run(batch) - other.run(batch)).max() <= 5e-3
    assert np.abs(load(bundle, device="cuda").session.run(batch) - plain.run(batch)).max() <= 5e-3


def test_tensorrt_computes_what_the_cpu_computes(bundle: Path) -> None:
    try:
        model = load(bundle, device="tensorrt")
    except CudaUnavailableError as error:
        pytest.skip(f"needs TensorRT: {error}")
    expected = np.concatenate([each.flat for each in load(bundle, device="cpu").outputs(TEXTS)])
    assert np.abs(np.concatenate([each.flat for each in model.outputs(TEXTS)]) - expected).max() <= 2e-2


def test_every_operator_runs_on_the_gpu(bundle: Path) -> None:
    for session in sessions(bundle):
        assert fallback_operators(session._session) == {}


def test_ids_beyond_the_table_do_not_reach_it(bundle: Path) -> None:
    ids = np.full((1, 8), 10**6)
    with pytest.raises(InputError, match="input_ids must lie in"):
        sessions(bundle)[0].run(Batch(ids, np.ones_like(ids), np.zeros_like(ids)))


@pytest.mark.parametrize(("form", "kernel"), [("masked", "EFFICIENT_ATTENTION"), ("unmasked", "FLASH_ATTENTION")])
def test_attention_runs_fused(bundle: Path, form: str, kernel: str) -> None:
    """ONNX Runtime prints the kernel that it chose; the toy's heads have 8 channels, as the fused ones want."""
    code = f"""
import numpy as np
from bert_runtime import load
from bert_runtime.tokenization import Batch
model = load({str(bundle)!r}, device="cuda")
tokens = min(128, model.manifest.max_tokens)
ids = np.ones((1 if {form!r} == "masked" else 2048 // tokens, tokens), dtype=np.int64)
model.session.run(Batch(ids, ids, np.zeros_like(ids)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO": "1"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f"SdpaKernel={kernel}" in done.stdout + done.stderr
