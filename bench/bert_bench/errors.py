"""Errors of the benchmark; see `bert_runtime.errors` for the whole tree."""

from bert_runtime.errors import BertError

__all__ = ["BenchError", "WorkerError"]


class BenchError(BertError):
    """The benchmark cannot give numbers that mean anything."""


class WorkerError(BenchError):
    """An engine's process failed or died; the message is the reason that the report gives."""
