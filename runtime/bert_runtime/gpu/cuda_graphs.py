"""CUDA graphs of one session: the kernels of a shape are recorded once and launched together from then on.

ONNX Runtime captures a graph in the first run with a new graph id, and replays it in later runs with that id. Buffers
must stay at the same addresses.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_runtime.bundle.manifest import TensorSpec
from bert_runtime.devices import Device
from bert_runtime.gpu.shape_buckets import Shape
from bert_runtime.numerics import FloatArray, IntArray

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

__all__ = ["NO_GRAPH", "CudaGraphs", "run_options"]

_log = logging.getLogger("bert_runtime")

NO_GRAPH = -1
"""The graph id for which ONNX Runtime neither captures nor replays."""


@dataclass(frozen=True)
class _CapturedShape:
    """The GPU buffers of one shape, which its CUDA graph reads and writes."""

    inputs: Any
    """All inputs in one buffer [inputs, B, S], so that one copy fills them."""
    output: Any
    binding: Any
    options: Any


class CudaGraphs:
    """The captured graphs of a session by shape. Not thread-safe.

    Args:
        session: the session; its provider has `enable_cuda_graph`.
        inputs: names of the graph's inputs.
        output: the output in the manifest; all its axes are fixed, or the batch or the sequence.
        device: the GPU.
        max_graphs: graphs to keep; further shapes are never captured.
    """

    def __init__(
        self, session: "InferenceSession", inputs: Sequence[str], output: TensorSpec, device: Device, max_graphs: int
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._output = output
        self._device = device
        self._max_graphs = max_graphs
        self._ids = itertools.count(1)
        self._num_uses: Counter[Shape] = Counter()
        self._failed: set[Shape] = set()
        self._captured: dict[Shape, _CapturedShape] = {}

    def is_captured(self, shape: Shape) -> bool:
        """Return whether the graph of a shape is ready to be replayed."""
        return shape in self._captured

    def is_due(self, shape: Shape) -> bool:
        """Count a use of `shape`, and return whether it is to run as a graph: from its second use on."""
        self._num_uses[shape] += 1
        if shape in self._captured:
            return True
        has_room = len(self._captured) < self._max_graphs and shape not in self._failed
        return has_room and self._num_uses[shape] > 1

    def run(self, staged: IntArray) -> FloatArray | None:
        """Capture or replay the graph of the inputs' shape, and return its output.

        A graph whose run fails is dropped, since ONNX Runtime would replay what it has captured of it; its id is not
        used again, and its shape never captured.

        Args:
            staged: the inputs in order, int64 [inputs, B, S].

        Returns:
            The output, or `None` where the graph failed.
        """
        shape: Shape = staged.shape[1:]
        try:
            if shape not in self._captured:
                self._captured[shape] = self._bind(shape)
            captured = self._captured[shape]
            captured.inputs.update_inplace(staged)
            self._session.run_with_iobinding(captured.binding, captured.options)
            array: FloatArray = captured.output.numpy()
        except Exception as error:  # onnxruntime's exceptions share no base class but Exception
            self._captured.pop(shape, None)
            self._failed.add(shape)
            _log.warning("%s: batches of %s run without a CUDA graph, since one failed: %s", self._device, shape, error)
            return None
        return array

    def _bind(self, shape: Shape) -> _CapturedShape:
        """Allocate GPU buffers for one shape."""
        from onnxruntime import OrtValue

        device = (self._device.kind, self._device.index)
        inputs = OrtValue.ortvalue_from_shape_and_type((len(self._inputs), *shape), np.int64, *device)
        sizes = dict(zip(("batch", "sequence"), shape, strict=True))
        axes = [sizes.get(str(axis), axis) for axis in self._output.axes]
        output = OrtValue.ortvalue_from_shape_and_type(axes, np.float32, *device)
        binding = self._session.io_binding()
        size_bytes = shape[0] * shape[1] * np.dtype(np.int64).itemsize
        for index, name in enumerate(self._inputs):
            binding.bind_input(name, *device, np.int64, shape, inputs.data_ptr() + index * size_bytes)
        binding.bind_ortvalue_output(self._output.name, output)
        return _CapturedShape(inputs, output, binding, run_options(next(self._ids)))


def run_options(graph_id: int) -> Any:
    """Return run options that capture or replay the CUDA graph of that id."""
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options
