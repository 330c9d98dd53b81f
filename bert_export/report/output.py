"""Write a report's page, whole or not at all."""

from pathlib import Path

from bert_export.errors import OutputExistsError
from bert_export.output_files import check_writable, write_errors
from bert_runtime.bundle.atomic_files import atomic_write, is_device

__all__ = ["check_output", "write_page"]


def check_output(path: Path, *, force: bool) -> None:
    """Check, before anything is measured, that a page can be written.

    Args:
        path: the file to write.
        force: whether it may exist.

    Raises:
        OutputExistsError: it exists.
        DataError: it is a folder, or in none.
    """
    check_writable(path)
    if path.is_file() and not force:
        raise OutputExistsError(f"{path} exists; replace it with --force, or name another file")


def write_page(path: Path, html: str) -> None:
    """Write a page. A file that is there is replaced once the new one is complete; a device is written to directly.

    Raises:
        DataError: it cannot be written.
    """
    with write_errors(path), path.open("w", encoding="utf-8") if is_device(path) else atomic_write(path) as stream:
        stream.write(html)
