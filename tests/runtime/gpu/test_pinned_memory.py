"""The staging buffer: padding, reuse, and page-locked memory from a fake CUDA runtime."""

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from bert_runtime.devices import CPU, Device
from bert_runtime.gpu import pinned_memory
from bert_runtime.gpu.pinned_memory import StagingBuffer
from bert_runtime.tokenization import Batch

NAMES = ("input_ids", "attention_mask", "token_type_ids")
GPU = Device(kind="cuda", index=1)


def batch(batch_size: int, length: int, value: int = 5) -> Batch:
    ids = np.full((batch_size, length), value, dtype=np.int64)
    return Batch(ids, np.ones_like(ids), np.ones_like(ids))


def test_padding_follows_sequences_and_tokens() -> None:
    staged = StagingBuffer(NAMES, 9, CPU).stage(batch(2, 3), (3, 4))
    assert staged.shape == (len(NAMES), 3, 4)
    assert staged.flags.c_contiguous
    assert staged[0].tolist() == [[5, 5, 5, 9], [5, 5, 5, 9], [9] * 4]
    for array in staged[1:]:
        assert array.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0] * 4]


def test_the_buffer_is_reused_without_leftovers_of_the_last_batch() -> None:
    staging = StagingBuffer(NAMES[:2], 0, CPU)
    large = staging.stage(batch(4, 8), (4, 8))
    small = staging.stage(batch(1, 2, value=7), (2, 4))
    assert np.shares_memory(large, small)
    assert small.tolist() == [[[7, 7, 0, 0], [0] * 4], [[1, 1, 0, 0], [0] * 4]]
    assert not np.shares_memory(staging.stage(batch(8, 8), (8, 8)), large)


class FakeRuntime:
    """A CUDA runtime that gives ordinary memory as page-locked."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.given: dict[int, Any] = {}
        self.freed: list[int] = []
        self.devices: list[int] = []
        self.last_error = 0

    def cudaGetLastError(self) -> int:  # noqa: N802 - CUDA's name
        found, self.last_error = self.last_error, 0
        return found

    def cudaSetDevice(self, index: int) -> int:  # noqa: N802 - CUDA's name
        self.devices.append(index)
        return 0

    def cudaHostAlloc(self, address: Any, size: Any, flags: int) -> int:  # noqa: N802 - CUDA's name
        if self.fails:
            self.last_error = 2
            return 2
        assert flags == 0
        memory = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(memory)
        self.given[ctypes.addressof(memory)] = memory
        return 0

    def cudaFreeHost(self, address: Any) -> None:  # noqa: N802 - CUDA's name
        self.freed.append(address.value)


def test_page_locked_memory_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    monkeypatch.setattr(pinned_memory, "_cuda_runtime", lambda: runtime)
    staging = StagingBuffer(NAMES, 0, GPU)
    for size in (2, 4, 3):
        staged = staging.stage(batch(1, size), (1, size))
        assert staged[0].tolist() == [[5] * size]
        assert staged.ctypes.data in runtime.given
    assert (len(runtime.given), set(runtime.devices)) == (2, {1})
    assert len(runtime.freed) == 1  # the one of two tokens
    del staging, staged
    gc.collect()
    assert sorted(runtime.freed) == sorted(runtime.given)


def test_the_buffer_is_ordinary_memory_where_none_can_be_page_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(fails=True)
    monkeypatch.setattr(pinned_memory, "_cuda_runtime", lambda: runtime)
    assert StagingBuffer(NAMES, 0, GPU).stage(batch(1, 2), (1, 2))[0].tolist() == [[5, 5]]
    assert runtime.last_error == 0  # the next caller does not see it
    monkeypatch.undo()
    monkeypatch.setattr(pinned_memory, "_LIBRARIES", ("libcudart.so.nowhere",))
    assert StagingBuffer(NAMES, 0, GPU).stage(batch(1, 3), (1, 3))[0].tolist() == [[5, 5, 5]]
