"""Device names, and the errors where CUDA is not available."""

import sys
from types import SimpleNamespace

import pytest

from bert_runtime import InputError, devices
from bert_runtime.devices import CPU, CUDA_PROVIDER, Device, cuda_unavailable_reason, parse_device, require_cuda
from bert_runtime.errors import CudaUnavailableError, MissingExtraError
from bert_runtime.installation import install_command


def installed(monkeypatch: pytest.MonkeyPatch, providers: list[str], distributions: dict[str, str]) -> None:
    """Fake an installation of ONNX Runtime with those providers, from those wheels."""
    module = SimpleNamespace(__version__="1.31.1", get_available_providers=lambda: providers)
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    monkeypatch.setattr(devices, "installed_versions", lambda names: {n: distributions[n] for n in distributions})


@pytest.mark.parametrize(
    ("name", "device", "shown"),
    [
        ("cpu", CPU, "cpu"),
        ("cuda", Device(kind="cuda"), "cuda:0"),
        ("cuda:1", Device(kind="cuda", index=1), "cuda:1"),
        ("cuda:12", Device(kind="cuda", index=12), "cuda:12"),
        ("tensorrt", Device(kind="tensorrt"), "tensorrt:0"),
        ("tensorrt:2", Device(kind="tensorrt", index=2), "tensorrt:2"),
    ],
)
def test_device_names(name: str, device: Device, shown: str) -> None:
    assert parse_device(name) == device
    assert str(device) == shown


def test_auto_parses_to_none() -> None:
    assert parse_device("auto") is None


@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "cuda:1 "])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"expected a device of auto, cpu, cuda\[:N\] or tensorrt\[:N\], found "):
        parse_device(name)


def test_cuda_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, [CUDA_PROVIDER, "CPUExecutionProvider"], {"onnxruntime-gpu": "1.31.1"})
    assert cuda_unavailable_reason() is None
    require_cuda()


def test_only_the_cpu_wheel_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ["CPUExecutionProvider"], {})
    with pytest.raises(CudaUnavailableError) as caught:
        require_cuda()
    assert "onnxruntime 1.31.1 is installed, which is for the CPU, and onnxruntime-gpu is not" in str(caught.value)
    assert f"pip uninstall onnxruntime onnxruntime-gpu; {install_command('gpu')}" in str(caught.value)


def test_the_cpu_wheel_has_overwritten_the_gpu_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, ["AzureExecutionProvider", "CPUExecutionProvider"], {"onnxruntime-gpu": "1.31.1"})
    with pytest.raises(CudaUnavailableError, match="has only AzureExecutionProvider, CPUExecutionProvider: the wheel"):
        require_cuda()


def test_onnxruntime_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[gpu\]'"):
        require_cuda()
