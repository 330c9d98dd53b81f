"""One ONNX Runtime session on a GPU: nothing falls back unseen, and small batches run as captured CUDA graphs.

Written against ONNX Runtime's documented interface and tested with stand-ins for it; it has not run on a GPU yet.
"""

import io
import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cpu.session import linked_weights
from bert_runtime.devices import CUDA_PROVIDER, INSTALL_LINES, Device, require_cuda
from bert_runtime.errors import BundleError, CudaUnavailableError, ForkedSessionError
from bert_runtime.gpu.pinned_memory import Staging
from bert_runtime.gpu.shape_buckets import Shape, ShapeBuckets, unpad
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch, check_ids

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

__all__ = ["CudaSession", "fallback_operators", "open_cuda_session", "provider_options"]

_log = logging.getLogger("bert_runtime")

_SHAPE_OPERATORS = frozenset(("Shape", "Size", "Squeeze", "Unsqueeze", "Concat", "Range", "Slice", "Cast"))
"""What ONNX Runtime computes shapes with, on the CPU on purpose: they read no activation and no weight."""

Provider = tuple[str, dict[str, str]]
"""ONNX Runtime's name of an execution provider, with its options."""

_GPU_LOCKS: dict[int, Lock] = {}
"""Of each GPU, held while a session is opened, a batch staged or run: memory must not be asked for during a capture."""

_NO_GRAPH = "-1"
"""The graph id for which ONNX Runtime neither captures nor replays."""


def provider_options(device: Device, *, capture: bool) -> dict[str, str]:
    """Options of the CUDA provider: FP32 stays FP32, normalization accumulates in it, memory grows as it is needed."""
    return {
        "device_id": str(device.index),
        "use_tf32": "0",
        "enable_skip_layer_norm_strict_mode": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "enable_cuda_graph": str(int(capture)),
    }


def open_cuda_session(
    path: str | Path, device: Device, *, capture: bool, ahead: Provider | None = None
) -> "InferenceSession":
    """A session for the graph in `path` on that GPU; a provider that goes `ahead` has the first choice of operators.

    Raises `CudaUnavailableError` where it would run elsewhere, and `BundleError` where the graph cannot be loaded.
    """
    require_cuda()
    import onnxruntime

    missing = io.StringIO()  # what cannot be loaded is printed, and stdout is for answers
    if hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(missing):
            onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # The exporter has chosen the operators; the extended level would choose again.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    wanted = [*([ahead] if ahead is not None else []), (CUDA_PROVIDER, provider_options(device, capture=capture))]
    try:
        # Without its own fallback, which would open the session anew on the CPU, or on CUDA with other options.
        with linked_weights(options, path):
            session = onnxruntime.InferenceSession(
                path, options, providers=[*wanted, "CPUExecutionProvider"], enable_fallback=0
            )
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        if "install TensorRT libraries" in str(error):
            raise _unavailable(device, str(error)) from None
        raise BundleError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load this graph on {device}: {error}"
        ) from None
    providers = session.get_providers()
    if CUDA_PROVIDER not in providers:
        failures = [line for line in missing.getvalue().splitlines() if line.startswith("Failed")]
        raise _unavailable(device, "; ".join(failures) or "there is no such GPU, or its driver is too old")
    if ahead is not None and ahead[0] not in providers:
        raise _unavailable(device, "CUDA is there, and TensorRT's libraries are not found")
    if ahead is not None and not _operators_on(session, ahead[0]):
        _log.warning("%s runs on CUDA alone where %s was asked for", Path(path).name, device)
    if operators := fallback_operators(session):
        counted = ", ".join(f"{count} {name}" for name, count in operators.items())
        _log.warning("%s runs on the CPU where %s was asked for: %s", Path(path).name, device, counted)
    return session


def fallback_operators(session: "InferenceSession") -> dict[str, int]:
    """How many operators of each type a session runs on the CPU, but for those that compute shapes.

    Empty also for releases of ONNX Runtime that do not tell.
    """
    operators = _operators_on(session, "CPUExecutionProvider")
    return {name: count for name, count in operators.items() if name not in _SHAPE_OPERATORS}


def _operators_on(session: "InferenceSession", provider: str) -> Counter[str]:
    """How many operators of each type a provider runs; empty also for releases of ONNX Runtime that do not tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return Counter()
    parts = session.get_provider_graph_assignment_info()
    return Counter(node.op_type for part in parts if part.ep_name == provider for node in part.get_nodes())


def _unavailable(device: Device, reason: str) -> CudaUnavailableError:
    import onnxruntime

    return CudaUnavailableError(
        f"{device} was asked for, and ONNX Runtime {onnxruntime.__version__} could not open it: {reason}. The "
        f"libraries are installed with: {INSTALL_LINES[device.kind]}"
    )


@dataclass(frozen=True)
class _Captured:
    """The buffers of one shape on the GPU, to which its CUDA graph is bound."""

    binding: Any
    inputs: Mapping[str, Any]
    output: Any
    options: Any


class CudaSession:
    """Runs batches through one graph on a GPU. Safe to call from many threads: a GPU runs one batch at a time.

    A shape that comes for the second time is captured as a CUDA graph, if `shapes` has room for it; all others are run
    operator by operator.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        device: Device,
        pad_token_id: int,
        shapes: ShapeBuckets | None = None,
        *,
        ahead: Provider | None = None,
    ) -> None:
        self.threads = 1
        self.device_name = str(device)
        self._device = device
        self._max_tokens = manifest.max_tokens
        self._limits = manifest.id_limits
        self._output = manifest.output
        # A number of rows that depends on the texts, as of masks, brings a copy to the host into the graph.
        fixed = all(isinstance(axis, int) or axis in ("batch", "sequence") for axis in manifest.output.axes)
        chosen = shapes or ShapeBuckets()
        self._shapes = chosen if fixed else replace(chosen, rows=())
        self._lock = _GPU_LOCKS.setdefault(device.index, Lock())
        with self._lock:
            self._session = open_cuda_session(path, device, capture=bool(self._shapes.rows), ahead=ahead)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._staging = Staging(self._inputs, pad_token_id, device)
        self._seen: Counter[Shape] = Counter()
        self._captured: dict[Shape, _Captured] = {}
        self._pid = os.getpid()

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; raises `InputError` for ids that the model has no row for."""
        self.check_process()
        check_ids(batch, self._limits)
        rows, tokens = batch.input_ids.shape
        shape = self._shapes.shape_for(rows, tokens, self._max_tokens)
        with self._lock:
            try:
                aligned = (rows, self._shapes.aligned(tokens, self._max_tokens))
                array = self._run(batch, shape or aligned, small=bool(shape))
            except Exception as error:  # see open_cuda_session
                if "cuDNN is unavailable" in str(error):  # which shows when attention runs, not when it is loaded
                    raise CudaUnavailableError(
                        f"attention on {self.device_name} needs cuDNN, which is not found; install it with: "
                        f"{INSTALL_LINES['cuda']}"
                    ) from None
                raise BundleError(f"ONNX Runtime cannot run this graph on {[rows, tokens]} ids: {error}") from None
        return unpad(array, self._output.axes, batch)

    def check_process(self) -> None:
        """Raises `ForkedSessionError` in a process that was forked from the one that made this."""
        if os.getpid() != self._pid:
            raise ForkedSessionError(
                "this model was loaded before the process forked, and CUDA does not survive that; "
                "call bert_runtime.load in each worker (gunicorn: without --preload)"
            )

    def _run(self, batch: Batch, shape: Shape, *, small: bool) -> FloatArray:
        """The output for a batch padded to `shape`."""
        feed = self._staging.stage(batch, shape)
        if not (small and self._admit(shape)):
            outputs: FloatArray = self._session.run([self._output.name], feed, _run_options(_NO_GRAPH))[0]
            return outputs
        captured = self._captured[shape]
        for name, array in feed.items():
            captured.inputs[name].update_inplace(array)
        self._session.run_with_iobinding(captured.binding, captured.options)
        result: FloatArray = captured.output.numpy()
        return result

    def _admit(self, shape: Shape) -> bool:
        """Whether this run of `shape` goes through a CUDA graph; makes its buffers when it does for the first time."""
        self._seen[shape] += 1
        if shape not in self._captured:
            if self._seen[shape] < 2 or len(self._captured) >= self._shapes.most:
                return False
            self._captured[shape] = self._bind(shape)
        return True

    def _bind(self, shape: Shape) -> _Captured:
        """Buffers on the GPU for one shape, at addresses that stay: a captured graph reads and writes these."""
        from onnxruntime import OrtValue

        where = (self._device.kind, self._device.index)
        sizes = dict(zip(("batch", "sequence"), shape, strict=True))
        inputs = {name: OrtValue.ortvalue_from_shape_and_type(shape, np.int64, *where) for name in self._inputs}
        axes = [sizes.get(str(axis), axis) for axis in self._output.axes]
        output = OrtValue.ortvalue_from_shape_and_type(axes, np.float32, *where)
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(self._output.name, output)
        return _Captured(binding, inputs, output, _run_options(str(len(self._captured) + 1)))


def _run_options(graph_id: str) -> Any:
    """Options of a run that captures or replays the CUDA graph of that number."""
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph_id)
    return options
