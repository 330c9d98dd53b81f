"""Input buffers in page-locked (pinned) memory, which a GPU reads without another copy on the host."""

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_runtime.devices import Device
from bert_runtime.gpu.shape_buckets import Shape
from bert_runtime.numerics import IntArray
from bert_runtime.tokenization import Batch

__all__ = ["StagingBuffers"]

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
"""The CUDA runtime that ONNX Runtime has loaded. Where there is none, buffers are ordinary memory."""


class StagingBuffers:
    """One buffer per graph input, which batches are padded into. Buffers are reused, and grow for larger batches.

    Not thread-safe: the next batch overwrites the arrays of the last one.

    Args:
        names: inputs of the graph.
        pad_token_id: fills `input_ids`; the other inputs are filled with 0.
        device: the GPU that the buffers are pinned for; on the CPU, buffers are ordinary memory.
    """

    def __init__(self, names: Iterable[str], pad_token_id: int, device: Device) -> None:
        self._device = device
        self._fills = {name: pad_token_id if name == "input_ids" else 0 for name in names}
        self._buffers: dict[str, IntArray] = {}

    def stage(self, batch: Batch, shape: Shape) -> dict[str, IntArray]:
        """Return the batch's inputs by name, int64 [B, S] of the given shape, padded below and to the right."""
        batch_size, length = batch.input_ids.shape
        staged = {}
        for name, fill in self._fills.items():
            array = self._buffer(name, shape[0] * shape[1]).reshape(shape)
            array[:batch_size, :length] = getattr(batch, name)
            array[batch_size:] = fill
            array[:batch_size, length:] = fill
            staged[name] = array
        return staged

    def _buffer(self, name: str, size: int) -> IntArray:
        """Return the first `size` elements of an input's buffer."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = _page_locked(size, self._device)
        return buffer[:size]


def _page_locked(size: int, device: Device) -> IntArray:
    """Return an int64 array of that size in page-locked memory, or in ordinary memory where CUDA gives none."""
    library = _cuda_runtime() if device.kind != "cpu" else None
    address = ctypes.c_void_p()
    size_bytes = size * np.dtype(np.int64).itemsize
    if (
        library is None
        # ONNX Runtime sets the device in every call, too; without it, CUDA would also open GPU 0.
        or library.cudaSetDevice(device.index) != 0
        or library.cudaHostAlloc(ctypes.byref(address), ctypes.c_size_t(size_bytes), 0) != 0
    ):
        if library is not None:
            library.cudaGetLastError()  # clears the error, which the next caller would take for its own
        return np.empty(size, dtype=np.int64)
    memory = (ctypes.c_byte * size_bytes).from_address(int(address.value or 0))
    weakref.finalize(memory, library.cudaFreeHost, address)  # when the last array that views it is gone
    return np.frombuffer(memoryview(memory), dtype=np.int64)


def _cuda_runtime() -> Any:
    """Return the CUDA runtime library, or `None` where there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
