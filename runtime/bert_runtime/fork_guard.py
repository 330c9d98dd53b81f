"""A check that a session is used in the process that opened it."""

import os

from bert_runtime.errors import ForkedSessionError

__all__ = ["CUDA_LOST", "THREADS_LOST", "ForkGuard"]

THREADS_LOST = "its threads do not exist in the child"
CUDA_LOST = "CUDA does not survive that"


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
