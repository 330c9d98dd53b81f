"""Input arrays in page-locked memory, which a GPU reads without a copy on the host in between."""

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_runtime.devices import Device
from bert_runtime.gpu.shape_buckets import Shape
from bert_runtime.tokenization import Batch

__all__ = ["Staging"]

_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
"""CUDA's runtime as ONNX Runtime has loaded it; on other systems memory stays as the system gives it."""


class Staging:
    """Buffers that batches are padded into, one per input, reused from run to run and grown when a larger one comes.

    Not safe to call from several threads: the arrays of one batch are overwritten by the next.
    """

    def __init__(self, names: Iterable[str], pad_token_id: int, device: Device) -> None:
        self._device = device
        self._fills = {name: pad_token_id if name == "input_ids" else 0 for name in names}
        self._buffers: dict[str, NDArray[np.int64]] = {}

    def stage(self, batch: Batch, shape: Shape) -> dict[str, NDArray[np.int64]]:
        """The inputs of a batch, int64 of `shape` [B, S]: its rows and tokens first, padding behind them."""
        rows, tokens = batch.input_ids.shape
        staged = {}
        for name, fill in self._fills.items():
            array = self._buffer(name, shape[0] * shape[1]).reshape(shape)
            array[:rows, :tokens] = getattr(batch, name)
            array[rows:] = fill
            array[:rows, tokens:] = fill
            staged[name] = array
        return staged

    def _buffer(self, name: str, size: int) -> NDArray[np.int64]:
        """The first `size` elements of an input's buffer."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = _page_locked(size, self._device)
        return buffer[:size]


def _page_locked(size: int, device: Device) -> NDArray[np.int64]:
    """That many int64 in memory that stays where it is, or in any where CUDA gives none."""
    library = _cuda_runtime() if device.kind != "cpu" else None
    address = ctypes.c_void_p()
    size_bytes = size * np.dtype(np.int64).itemsize
    if (
        library is None
        or library.cudaSetDevice(device.index)
        != 0  # as ONNX Runtime does in every run; else GPU 0 would be opened, too
        or library.cudaHostAlloc(ctypes.byref(address), ctypes.c_size_t(size_bytes), 0) != 0
    ):
        if library is not None:
            library.cudaGetLastError()  # it is kept, and the next to look would take it for its own
        return np.empty(size, dtype=np.int64)
    memory = (ctypes.c_byte * size_bytes).from_address(int(address.value or 0))
    weakref.finalize(memory, library.cudaFreeHost, address)  # when the last array of it is gone
    return np.frombuffer(memoryview(memory), dtype=np.int64)


def _cuda_runtime() -> Any:
    """CUDA's runtime library, or `None` where there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
