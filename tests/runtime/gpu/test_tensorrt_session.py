"""The TensorRT session with a fake ONNX Runtime session: its options, its batches and its errors."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_runtime import BundleError, Manifest, load
from bert_runtime.bundle.manifest import Asset
from bert_runtime.devices import CUDA_PROVIDER, TENSORRT_PROVIDER, Device
from bert_runtime.errors import CudaUnavailableError
from bert_runtime.gpu import tensorrt_session
from bert_runtime.gpu.cuda_provider import open_cuda_session
from bert_runtime.gpu.tensorrt_session import MAX_BATCH_SIZE, TensorrtSession, engine_folder, tensorrt_options
from bert_runtime.tokenization import Batch

GPU = Device(kind="tensorrt", index=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every GPU session; each session outputs its sequences' lengths."""
    made: list[dict[str, Any]] = []

    def session(*arguments: Any, **options: Any) -> Any:
        made.append({"arguments": arguments, **options})
        return SimpleNamespace(threads=1, run=lambda batch: batch.attention_mask.sum(axis=1, keepdims=True))

    monkeypatch.setattr(tensorrt_session, "CudaSession", session)
    return made


def test_options(classifier_bundle: Path, cache: Path) -> None:
    manifest = Manifest.read(classifier_bundle)
    variant = replace(manifest.variant("fp32"), precision="fp16", target="tensorrt")
    options = tensorrt_options(variant, manifest, GPU)
    assert all(isinstance(value, str) for value in options.values())
    assert (options["device_id"], options["trt_fp16_enable"]) == ("1", "True")
    names = [spec.name for spec in manifest.inputs]
    max_tokens = manifest.max_tokens
    for key, shape in (("min", "1x1"), ("opt", f"8x{min(128, max_tokens)}"), ("max", f"128x{max_tokens}")):
        assert options[f"trt_profile_{key}_shapes"] == ",".join(f"{name}:{shape}" for name in names)
    folder = Path(options["trt_engine_cache_path"])
    assert folder == engine_folder(variant)
    assert folder.is_dir()
    assert folder.is_relative_to(cache / "bert-export")
    assert tensorrt_options(manifest.variant("fp32"), manifest, GPU)["trt_fp16_enable"] == "False"


def test_engines_are_cached_by_graph_and_weights(classifier_bundle: Path, cache: Path) -> None:
    variant = Manifest.read(classifier_bundle).variant("fp32")
    weights = (Asset(file="weights", size_bytes=1, sha256=digit * 64) for digit in "ab")
    folders = {engine_folder(other) for other in (variant, *(replace(variant, external_data=data) for data in weights))}
    assert len(folders) == 3


def test_a_cache_that_cannot_be_written_is_logged_and_not_used(
    classifier_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    manifest = Manifest.read(classifier_bundle)
    options = tensorrt_options(manifest.variant("fp32"), manifest, GPU)
    assert not [name for name in options if "cache" in name]
    assert caplog.messages[0].startswith("TensorRT's engine cannot be cached, and is built again at every start: ")


def test_batches_over_the_engine_maximum_are_split(
    classifier_bundle: Path, cache: Path, opened: list[dict[str, Any]]
) -> None:
    manifest = Manifest.read(classifier_bundle)
    session = TensorrtSession(classifier_bundle, manifest, manifest.variant("fp32"), GPU)
    assert session.device_name == "tensorrt:1"
    name, options = opened[0]["preferred"]
    assert (name, options["trt_fp16_enable"]) == (TENSORRT_PROVIDER, "False")
    assert opened[0]["arguments"][3].batch_sizes == ()  # no CUDA graphs
    batch_size = 2 * MAX_BATCH_SIZE + 3
    mask = (np.arange(7)[None, :] < 1 + np.arange(batch_size)[:, None] % 7).astype(np.int64)
    assert session.run(Batch(mask, mask, mask)).ravel().tolist() == mask.sum(axis=1).tolist()


def test_tensorrt_is_used_only_when_asked_for(
    classifier_bundle: Path, cache: Path, opened: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        BundleError, match="no variant for tensorrt; export the checkpoint again with --target tensorrt"
    ):
        load(classifier_bundle, device="tensorrt")
    monkeypatch.setattr("bert_runtime.variant_choice.cuda_unavailable_reason", lambda: None)
    assert load(classifier_bundle).session.device_name.endswith(" threads")
    assert opened == []


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ([], "Please install TensorRT libraries as"),
        ([CUDA_PROVIDER], "CUDA is available, but TensorRT's libraries are not found"),
        ([TENSORRT_PROVIDER, CUDA_PROVIDER], None),
    ],
    ids=["not installed", "not opened", "there"],
)
def test_missing_libraries_are_an_error(
    classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], reason: str | None
) -> None:
    import onnxruntime

    asked: list[Any] = []

    def session(path: Path, options: Any, providers: Any, **others: Any) -> Any:
        assert others == {"enable_fallback": 0}
        asked.append(providers)
        if not there:
            raise RuntimeError("Please install TensorRT libraries as mentioned in the GPU requirements page")
        return SimpleNamespace(get_providers=lambda: [*there, "CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT_PROVIDER, CUDA_PROVIDER])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    preferred = (TENSORRT_PROVIDER, {"device_id": "1"})
    graph = classifier_bundle / "model.fp32.onnx"
    if reason is not None:
        with pytest.raises(CudaUnavailableError, match=rf"tensorrt:1 was asked.*{reason}.*'tensorrt-cu13>=10,<11'"):
            open_cuda_session(graph, GPU, capture=False, preferred=preferred)
    else:
        open_cuda_session(graph, GPU, capture=False, preferred=preferred)
    assert [provider if isinstance(provider, str) else provider[0] for provider in asked[0]] == [
        TENSORRT_PROVIDER, CUDA_PROVIDER, "CPUExecutionProvider",
    ]  # fmt: skip
