"""Files that commands write their results to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_runtime.bundle.atomic_files import output_problem
from bert_runtime.errors import DataError

__all__ = ["check_writable", "write_errors"]


def check_writable(path: Path) -> None:
    """Raise `DataError`, before anything is computed, where there cannot be a file at `path`."""
    if problem := output_problem(path):
        raise DataError(problem)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise errors of the system in the block as a `DataError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
