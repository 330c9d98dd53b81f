"""Sessions of ONNX Runtime's CUDA provider: its options, and no silent fallback to the CPU."""

import io
import logging
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bert_runtime.cpu.session import weights_in_memory
from bert_runtime.devices import CUDA_PROVIDER, Device, gpu_install_command, require_cuda
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.fork_guard import let_children_exit

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

__all__ = ["Provider", "fallback_operators", "open_cuda_session", "provider_options"]

_UNAVAILABLE = (
    "install TensorRT libraries",
    "CUDA failure",
    "CUDA error",
    "CUBLAS failure 3",  # CUBLAS_STATUS_ALLOC_FAILED
    "Failed to allocate memory for requested buffer",
)
"""Parts of ONNX Runtime's messages about the machine and not the graph: no library, no such device, no memory left."""

_log = logging.getLogger("bert_runtime")

_SDPA_KERNELS = 1 | 2 | 16
"""Attention kernels that ONNX Runtime may choose, as bits: FlashAttention, memory-efficient (CUTLASS), and
unfused. Without this, 1.31 takes cuDNN's on Hopper, which builds a plan for each shape and thread and fails where it
cannot."""

_SHAPE_OPERATORS = frozenset(("Shape", "Size", "Squeeze", "Unsqueeze", "Concat", "Range", "Slice", "Cast"))
"""Operators that ONNX Runtime runs on the CPU on purpose: they compute shapes, and read no activation and no weight."""

Provider = tuple[str, dict[str, str]]
"""Name of an execution provider of ONNX Runtime, and its options."""


def provider_options(device: Device, *, capture: bool) -> dict[str, str]:
    """Return the options of the CUDA provider.

    They keep FP32 exact (no TF32) and choose attention kernels that need no plan. Memory grows by powers of two, as is
    the provider's default: growing by what is needed calls `cudaMalloc` for most new shapes.

    Args:
        device: the GPU.
        capture: whether CUDA graphs are to be captured.
    """
    return {
        "device_id": str(device.index),
        "use_tf32": "0",
        "sdpa_kernel": str(_SDPA_KERNELS),
        "enable_cuda_graph": str(int(capture)),
    }


def open_cuda_session(
    path: str | Path, device: Device, *, capture: bool, preferred: Provider | None = None
) -> "InferenceSession":
    """Open an ONNX Runtime session on a GPU. Operators that run on the CPU nevertheless are logged.

    Args:
        path: the ONNX graph.
        device: the GPU.
        capture: whether CUDA graphs are to be captured.
        preferred: a provider that is offered every operator before CUDA, such as TensorRT.

    Raises:
        CudaUnavailableError: the session would run on the CPU, or without the preferred provider.
        MissingExtraError: onnxruntime is not installed.
        BundleError: the graph cannot be loaded.
    """
    require_cuda()
    import onnxruntime

    load_errors = io.StringIO()  # preload_dlls prints them, and stdout is for results
    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(load_errors):
            onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
    options = _cuda_options()
    providers = [*([preferred] if preferred is not None else [])]
    providers.append((CUDA_PROVIDER, provider_options(device, capture=capture)))
    try:
        # Without ONNX Runtime's fallback, which would open the session again on the CPU, or on CUDA with other options.
        with weights_in_memory(options, path):
            session = onnxruntime.InferenceSession(
                path, options, providers=[*providers, "CPUExecutionProvider"], enable_fallback=0
            )
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        if any(words in str(error) for words in _UNAVAILABLE):
            raise _unavailable(device, str(error)) from None
        raise BundleError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load this graph on {device}: {error}"
        ) from None
    _check_providers(session, device, preferred, load_errors.getvalue())
    _log_fallbacks(session, Path(path).name, device, preferred)
    let_children_exit(session)
    return session


def _cuda_options() -> "SessionOptions":
    """Return the options that all GPU sessions share."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # The exporter has chosen the operators; the extended level would choose again.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _check_providers(session: "InferenceSession", device: Device, preferred: Provider | None, load_errors: str) -> None:
    """Raise `CudaUnavailableError` where the session lacks CUDA or the preferred provider."""
    found = session.get_providers()
    if CUDA_PROVIDER not in found:
        failures = [line for line in load_errors.splitlines() if line.startswith("Failed")]
        raise _unavailable(device, "; ".join(failures) or "there is no such GPU, or its driver is too old")
    if preferred is not None and preferred[0] not in found:
        raise _unavailable(device, "CUDA is available, but TensorRT's libraries are not found")


def _log_fallbacks(session: "InferenceSession", name: str, device: Device, preferred: Provider | None) -> None:
    """Log a warning for operators that do not run where they were asked to."""
    if preferred is not None and not _operators_on(session, preferred[0]):
        _log.warning("%s runs on CUDA alone where %s was asked for", name, device)
    if operators := fallback_operators(session):
        counts = ", ".join(f"{count} {operator}" for operator, count in operators.items())
        _log.warning("%s runs on the CPU where %s was asked for: %s", name, device, counts)


def fallback_operators(session: "InferenceSession") -> dict[str, int]:
    """Count the operators of a session that run on the CPU, by type, except those that compute shapes.

    Empty also for releases of ONNX Runtime that do not report where operators run.
    """
    operators = _operators_on(session, "CPUExecutionProvider")
    return {name: count for name, count in operators.items() if name not in _SHAPE_OPERATORS}


def _operators_on(session: "InferenceSession", provider: str) -> Counter[str]:
    """Count the operators that a provider runs, by type; empty where ONNX Runtime does not report it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return Counter()
    parts = session.get_provider_graph_assignment_info()
    return Counter(node.op_type for part in parts if part.ep_name == provider for node in part.get_nodes())


def _unavailable(device: Device, reason: str) -> CudaUnavailableError:
    import onnxruntime

    return CudaUnavailableError(
        f"{device} was asked for, and ONNX Runtime {onnxruntime.__version__} could not open it: {reason}. Install the "
        f"libraries with: {gpu_install_command(device.kind)}"
    )
