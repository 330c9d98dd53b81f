"""An input buffer in page-locked (pinned) memory, which a GPU reads without another copy on the host."""

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_runtime.devices import Device
from bert_runtime.gpu.shape_buckets import Shape
from bert_runtime.numerics import IntArray
from bert_runtime.tokenization import Batch

__all__ = ["StagingBuffer"]

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
"""The CUDA runtime that ONNX Runtime has loaded. Where there is none, buffers are ordinary memory."""


class StagingBuffer:
    """One buffer for all graph inputs, which batches are padded into. It is reused, and grows for larger batches.

    Not thread-safe: the next batch overwrites the array of the last one.

    Args:
        names: inputs of the graph.
        pad_token_id: fills `input_ids`; the other inputs are filled with 0.
        device: the GPU that the buffer is pinned for; on the CPU, it is ordinary memory.
    """

    def __init__(self, names: Iterable[str], pad_token_id: int, device: Device) -> None:
        self._device = device
        self._fills = {name: pad_token_id if name == "input_ids" else 0 for name in names}
        self._buffer: IntArray = np.empty(0, dtype=np.int64)

    def stage(self, batch: Batch, shape: Shape) -> IntArray:
        """Return the batch's inputs in the order of `names`, padded below and to the right to `shape`.

        Returns:
            A contiguous int64 array [inputs, B, S], so that one copy brings all inputs to the GPU.
        """
        batch_size, length = batch.input_ids.shape
        size = len(self._fills) * shape[0] * shape[1]
        if self._buffer.size < size:
            self._buffer = _page_locked(size, self._device)
        staged = self._buffer[:size].reshape(len(self._fills), *shape)
        for array, (name, fill) in zip(staged, self._fills.items(), strict=True):
            array[:batch_size, :length] = getattr(batch, name)
            array[batch_size:] = fill
            array[:batch_size, length:] = fill
        return staged


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
