"""Files that are there whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

__all__ = ["atomic_write", "temp_path"]


def temp_path(path: Path) -> Path:
    """Where a file is until all of it has been written."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file that takes the place of `path` when the block ends without an error; otherwise nothing changes.

    Its permissions are those of the file that was there, and where `path` is a link it goes where that leads. Raises
    `OSError`.
    """
    path = path.resolve()
    partial = temp_path(path)
    try:
        with partial.open("w", encoding="utf-8") as stream:
            if path.exists():
                partial.chmod(path.stat().st_mode & 0o7777)
            yield stream
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
