"""The devices that a model can run on: CPU, CUDA, and TensorRT (with CUDA for operators that it lacks)."""

import re
from dataclasses import dataclass

from bert_runtime.errors import CudaUnavailableError, InputError, MissingExtraError
from bert_runtime.installation import install_command
from bert_runtime.machine import installed_versions

__all__ = [
    "CPU",
    "CUDA_PROVIDER",
    "TENSORRT_PROVIDER",
    "Device",
    "cuda_unavailable_reason",
    "gpu_install_command",
    "parse_device",
    "require_cuda",
]

CUDA_PROVIDER = "CUDAExecutionProvider"
"""ONNX Runtime's name for CUDA."""

TENSORRT_PROVIDER = "TensorrtExecutionProvider"
"""ONNX Runtime's name for TensorRT."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device: its kind, and its number among the devices of that kind."""

    kind: str
    """`cpu`, `cuda` or `tensorrt`."""
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device(kind="cpu")


def parse_device(name: str) -> Device | None:
    """Parse `cpu`, `cuda` or `tensorrt:1`; return `None` for `auto`, and raise `InputError` for anything else."""
    if name == "auto":
        return None
    match = re.fullmatch(r"cpu|(?:cuda|tensorrt)(?::(\d+))?", name)
    if match is None:
        raise InputError(f"expected a device of auto, cpu, cuda[:N] or tensorrt[:N], found {name!r}")
    return Device(kind=name.partition(":")[0], index=int(match[1] or 0))


def gpu_install_command(kind: str) -> str:
    """Return the shell command that installs the libraries for a kind of device, `cuda` or `tensorrt`.

    It uninstalls both of ONNX Runtime's wheels first: they own the same module, so the last one wins, and removing that
    breaks the other. ONNX Runtime 1.31 is built for TensorRT 10.
    """
    tensorrt = " 'tensorrt-cu13>=10,<11'" if kind == "tensorrt" else ""
    return f"pip uninstall onnxruntime onnxruntime-gpu; {install_command('gpu')}{tensorrt}"


def cuda_unavailable_reason() -> str | None:
    """Return why the installed ONNX Runtime cannot use CUDA, or `None` where it has the provider.

    Whether there is a GPU with its libraries is known only once a session is opened. Raises `MissingExtraError` where
    onnxruntime is not installed.
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
        "onnxruntime, which is installed as well, has replaced its files"
    )


def require_cuda() -> None:
    """Raise `CudaUnavailableError`, with the reason and an install command, where ONNX Runtime cannot use CUDA."""
    if reason := cuda_unavailable_reason():
        command = gpu_install_command("cuda")
        raise CudaUnavailableError(f"CUDA was asked for and cannot be used: {reason}; install it with: {command}")
