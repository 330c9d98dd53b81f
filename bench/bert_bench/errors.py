"""Errors of the benchmark; see `bert_runtime.errors` for the whole tree."""

from bert_runtime.errors import BertError

__all__ = ["BenchError", "WorkerError"]


class BenchError(BertError):
    """The benchmark cannot produce meaningful numbers."""


class WorkerError(BenchError):
    """A worker process failed or died; the message is the reason that reports list."""
