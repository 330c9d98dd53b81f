"""Errors of the benchmark; see `bert_runtime.errors` for the whole tree."""

from bert_runtime.errors import BertError

__all__ = ["BenchError", "DocumentationError", "WorkerError"]


class BenchError(BertError):
    """The benchmark cannot produce meaningful numbers."""


class WorkerError(BenchError):
    """A worker process failed or died; the message is the reason that reports list."""


class DocumentationError(BenchError):
    """A generated block or page cannot be made. The message starts with `file:line` where a block is at fault."""
