"""Files that commands write their results to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_export.errors import OutputExistsError
from bert_runtime.bundle.atomic_files import output_problem
from bert_runtime.bundle.atomic_folders import check_replaceable
from bert_runtime.bundle.contents import replacement_problem
from bert_runtime.errors import DataError

__all__ = ["check_bundle_output", "check_writable", "write_errors"]


def check_bundle_output(output: Path, *, force: bool) -> None:
    """Raise `BertError`, before anything is computed, unless a bundle may be written to `output`.

    Raises:
        OutputExistsError: see `replacement_problem`.
        BertError: see `check_replaceable`.
    """
    check_replaceable(output)
    if problem := replacement_problem(output, force=force):
        raise OutputExistsError(problem)


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
