"""Where a model runs: the CPU, or a GPU that ONNX Runtime reaches with CUDA, and with TensorRT ahead of it."""

import re
from dataclasses import dataclass

from bert_runtime.errors import CudaUnavailableError, InputError, MissingExtraError
from bert_runtime.machine import installed_versions

__all__ = [
    "CPU",
    "CUDA_PROVIDER",
    "INSTALL_LINES",
    "TENSORRT_PROVIDER",
    "Device",
    "cuda_unavailable_reason",
    "parse_device",
    "require_cuda",
]

CUDA_PROVIDER = "CUDAExecutionProvider"
"""ONNX Runtime's name for it."""

TENSORRT_PROVIDER = "TensorrtExecutionProvider"
"""The same for TensorRT."""

_INSTALL_CUDA = "pip uninstall onnxruntime onnxruntime-gpu; pip install 'bert-export[gpu]'"
"""The two wheels own the same module: whichever was installed last wins, and removing it breaks the other."""

INSTALL_LINES = {"cuda": _INSTALL_CUDA, "tensorrt": f"{_INSTALL_CUDA} 'tensorrt-cu13>=10,<11'"}
"""What brings the libraries for each kind of device; ONNX Runtime 1.31 is built for TensorRT 10."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device by its kind, `cpu`, `cuda` or `tensorrt`, and its number among those of its kind."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device(kind="cpu")
"""The processor."""


def parse_device(name: str) -> Device | None:
    """`cpu`, `cuda` or `tensorrt:1` as a device, and `auto` as `None`; raises `InputError` for anything else."""
    if name == "auto":
        return None
    match = re.fullmatch(r"cpu|(?:cuda|tensorrt)(?::(\d+))?", name)
    if match is None:
        raise InputError(f"expected a device of auto, cpu, cuda[:N] or tensorrt[:N], found {name!r}")
    return Device(kind=name.partition(":")[0], index=int(match[1] or 0))


def cuda_unavailable_reason() -> str | None:
    """Why this installation of ONNX Runtime cannot use CUDA, or `None` where it has the provider.

    Whether there is a GPU, and the libraries for it, shows only when a session is opened.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "gpu", "running a model on a GPU") from None
    providers = onnxruntime.get_available_providers()
    if CUDA_PROVIDER in providers:
        return None
    if "onnxruntime-gpu" not in installed_versions(["onnxruntime-gpu"]):
        return f"onnxruntime {onnxruntime.__version__} is installed, which is for the CPU, and onnxruntime-gpu is not"
    return (
        f"onnxruntime-gpu is installed, but the module that Python finds has only {', '.join(providers)}: the wheel "
        "onnxruntime, installed beside it, has replaced its files"
    )


def require_cuda() -> None:
    """Raises `CudaUnavailableError` with the reason and the line that installs what is needed."""
    if problem := cuda_unavailable_reason():
        raise CudaUnavailableError(
            f"CUDA was asked for and cannot be used: {problem}; install it with: {_INSTALL_CUDA}"
        )
