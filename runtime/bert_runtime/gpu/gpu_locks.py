"""Locks of the process's GPUs: while a CUDA graph is captured, nothing else may allocate memory on any of them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

__all__ = ["capture_lock", "gpu_lock"]

_locks: dict[int, Lock] = {}
"""A lock per GPU, held while a session is opened or a batch runs."""

_locks_lock = Lock()
"""Held while `_locks` is read, and throughout a capture, so that no other GPU is used for the first time meanwhile."""


@contextmanager
def gpu_lock(index: int) -> Iterator[None]:
    """Hold the lock of one GPU: it runs one batch at a time, and none while a graph is captured on any GPU."""
    with _locks_lock:
        lock = _locks.setdefault(index, Lock())
    with lock:
        yield


@contextmanager
def capture_lock() -> Iterator[None]:
    """Hold the locks of all GPUs: CUDA refuses allocations anywhere in the process while it captures a graph."""
    with _locks_lock, ExitStack() as stack:
        for _, lock in sorted(_locks.items()):
            stack.enter_context(lock)
        yield
