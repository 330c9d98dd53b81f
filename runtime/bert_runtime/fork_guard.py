"""Sessions and forks: a forked child cannot use the sessions that it inherits, but it can exit."""

import ctypes
import os
import sys
import weakref
from functools import cache
from typing import Any

from bert_runtime.errors import ForkedSessionError

__all__ = ["CUDA_LOST", "THREADS_LOST", "ForkGuard", "let_children_exit"]

THREADS_LOST = "its threads do not exist in the child"
CUDA_LOST = "CUDA does not survive that"

_sessions: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""The ONNX Runtime sessions of this process."""


class ForkGuard:
    """Remember the process that opens a session, and refuse others.

    Locks, threads and CUDA contexts do not survive a fork: a child that used them would wait forever or crash.
    """

    def __init__(self, reason: str) -> None:
        self._pid = os.getpid()
        self._reason = reason

    def check(self) -> None:
        """Raise `ForkedSessionError` in a process that was forked from the one that made this guard."""
        if os.getpid() != self._pid:
            raise ForkedSessionError(
                f"this model was loaded before the process forked, and {self._reason}; "
                "call bert_runtime.load in each worker (gunicorn: without --preload)"
            )


def let_children_exit(session: Any) -> None:
    """Keep an ONNX Runtime session from blocking processes that are forked from this one.

    The destructor of a thread pool waits for its threads, which a forked child does not have. So a child never destroys
    the sessions that it inherits, and exits without the destructors of ONNX Runtime's static objects: one of them waits
    as soon as the module is imported (1.31.1: a child of `import onnxruntime; os.fork()` does not exit). Python's
    `atexit` functions run, and C's buffers are flushed.

    Args:
        session: an `onnxruntime.InferenceSession`.
    """
    _register_once()
    if (native_session := getattr(session, "_sess", None)) is not None:
        _sessions.add(native_session)


@cache
def _register_once() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    for session in _sessions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc; the functions run in the reverse order
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
