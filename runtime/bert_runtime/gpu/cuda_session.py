"""An ONNX Runtime session on CUDA: no silent fallback to the CPU, and small batches as captured CUDA graphs.

Written against ONNX Runtime's documentation and tested with stand-ins for it; it has not run on a GPU yet.
"""

import io
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_runtime.bundle.manifest import Manifest
from bert_runtime.bundle.output_shape import check_output_shape
from bert_runtime.cpu.session import weights_in_memory
from bert_runtime.devices import CUDA_PROVIDER, Device, gpu_install_command, require_cuda
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.fork_guard import CUDA_LOST, ForkGuard, let_children_exit
from bert_runtime.gpu.pinned_memory import StagingBuffers
from bert_runtime.gpu.shape_buckets import Shape, ShapeBuckets, unpad
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch, check_ids

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

__all__ = ["CudaSession", "Provider", "fallback_operators", "open_cuda_session", "provider_options"]

_log = logging.getLogger("bert_runtime")

_SHAPE_OPERATORS = frozenset(("Shape", "Size", "Squeeze", "Unsqueeze", "Concat", "Range", "Slice", "Cast"))
"""Operators that ONNX Runtime runs on the CPU on purpose: they compute shapes, and read no activation and no weight."""

Provider = tuple[str, dict[str, str]]
"""Name of an execution provider of ONNX Runtime, and its options."""

_GPU_LOCKS: dict[int, Lock] = {}
"""A lock per GPU, held while a session is opened or a batch runs: nothing may allocate memory during a capture."""

_NO_GRAPH = "-1"
"""The graph id for which ONNX Runtime neither captures nor replays."""


def provider_options(device: Device, *, capture: bool) -> dict[str, str]:
    """Return the options of the CUDA provider.

    They keep FP32 exact (no TF32), accumulate normalization in FP32, and grow memory by what is needed.

    Args:
        device: the GPU.
        capture: whether CUDA graphs are to be captured.
    """
    return {
        "device_id": str(device.index),
        "use_tf32": "0",
        "enable_skip_layer_norm_strict_mode": "1",
        "arena_extend_strategy": "kSameAsRequested",
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
        if "install TensorRT libraries" in str(error):
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


@dataclass(frozen=True)
class _CapturedShape:
    """The GPU buffers of one shape, which its CUDA graph reads and writes."""

    binding: Any
    inputs: Mapping[str, Any]
    output: Any
    options: Any


class CudaSession:
    """A session for one graph on a GPU; a `bert_runtime.runner.Runner`.

    A shape is captured as a CUDA graph on its second use, if `shapes` has a bucket and room for it. All other batches
    run operator by operator. Safe to call from many threads, but not after a fork: a GPU runs one batch at a time.

    Args:
        path: the ONNX graph.
        manifest: the bundle's manifest, for inputs, output, `max_tokens` and `pad_token_id`.
        device: the GPU.
        shapes: the shapes to capture, by default `ShapeBuckets()`. A graph whose output has a data-dependent size, such
            as the number of masks, is never captured: it would need a copy to the host.
        preferred: see `open_cuda_session`.

    Raises:
        CudaUnavailableError: see `open_cuda_session`.
        BundleError: the graph cannot be loaded.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        device: Device,
        shapes: ShapeBuckets | None = None,
        *,
        preferred: Provider | None = None,
    ) -> None:
        self.threads = 1
        self.device_name = str(device)
        self._device = device
        self._max_tokens = manifest.max_tokens
        self._id_limits = manifest.id_limits
        self._output = manifest.output
        fixed_size = all(isinstance(axis, int) or axis in ("batch", "sequence") for axis in manifest.output.axes)
        chosen = shapes or ShapeBuckets()
        self._shapes = chosen if fixed_size else replace(chosen, batch_sizes=())
        self._lock = _GPU_LOCKS.setdefault(device.index, Lock())
        with self._lock:
            capture = bool(self._shapes.batch_sizes)
            self._session = open_cuda_session(path, device, capture=capture, preferred=preferred)
        found = {node.name: node.shape for node in self._session.get_outputs()}
        check_output_shape(path, found.get(manifest.output.name, ()), manifest.output)
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._staging = StagingBuffers(self._inputs, manifest.pad_token_id, device)
        self._num_uses: Counter[Shape] = Counter()
        self._captured: dict[Shape, _CapturedShape] = {}
        self._fork_guard = ForkGuard(CUDA_LOST)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …].

        Raises:
            InputError: an id is out of range.
            ForkedSessionError: this process was forked from the one that opened the session.
            CudaUnavailableError: attention needs cuDNN, which is not found.
            BundleError: ONNX Runtime cannot run the graph on this batch, for example because memory runs out.
        """
        self._fork_guard.check()
        check_ids(batch, self._id_limits)
        batch_size, length = batch.input_ids.shape
        bucket = self._shapes.shape_for(batch_size, length, self._max_tokens)
        shape = bucket or (batch_size, self._shapes.align_length(length, self._max_tokens))
        with self._lock:
            try:
                array = self._run_padded(batch, shape, capture=bucket is not None)
            except Exception as error:  # see open_cuda_session
                if "cuDNN is unavailable" in str(error):  # shows when attention runs, not when it is loaded
                    raise CudaUnavailableError(
                        f"attention on {self.device_name} needs cuDNN, which is not found; install it with: "
                        f"{gpu_install_command('cuda')}"
                    ) from None
                raise BundleError(
                    f"ONNX Runtime cannot run this graph on {[batch_size, length]} ids: {error}"
                ) from None
        return unpad(array, self._output.axes, batch)

    def _run_padded(self, batch: Batch, shape: Shape, *, capture: bool) -> FloatArray:
        """Return the output of a batch padded to `shape`, through a CUDA graph if `capture` and it is used again."""
        feed = self._staging.stage(batch, shape)
        if not (capture and self._use_graph(shape)):
            outputs: FloatArray = self._session.run([self._output.name], feed, _run_options(_NO_GRAPH))[0]
            return outputs
        captured = self._captured[shape]
        for name, array in feed.items():
            captured.inputs[name].update_inplace(array)
        self._session.run_with_iobinding(captured.binding, captured.options)
        result: FloatArray = captured.output.numpy()
        return result

    def _use_graph(self, shape: Shape) -> bool:
        """Count a use of `shape`, and return whether it runs as a CUDA graph; the second use allocates its buffers."""
        self._num_uses[shape] += 1
        if shape not in self._captured:
            if self._num_uses[shape] < 2 or len(self._captured) >= self._shapes.max_graphs:
                return False
            self._captured[shape] = self._bind(shape)
        return True

    def _bind(self, shape: Shape) -> _CapturedShape:
        """Allocate GPU buffers for one shape at fixed addresses, which a captured graph reads and writes."""
        from onnxruntime import OrtValue

        device = (self._device.kind, self._device.index)
        sizes = dict(zip(("batch", "sequence"), shape, strict=True))
        inputs = {name: OrtValue.ortvalue_from_shape_and_type(shape, np.int64, *device) for name in self._inputs}
        axes = [sizes.get(str(axis), axis) for axis in self._output.axes]
        output = OrtValue.ortvalue_from_shape_and_type(axes, np.float32, *device)
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(self._output.name, output)
        return _CapturedShape(binding, inputs, output, _run_options(str(len(self._captured) + 1)))


def _run_options(graph_id: str) -> Any:
    """Return run options that capture or replay the CUDA graph of that id."""
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph_id)
    return options
