"""Files that are replaced atomically: a reader finds the old contents or the new ones, never a part of either."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

__all__ = ["atomic_path", "atomic_write", "is_device", "output_problem", "temp_path"]


def temp_path(path: Path) -> Path:
    """Return a path that a file may have until all of it is written: another one for each of several writers."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")


def output_problem(path: Path) -> str | None:
    """Return why there cannot be a file at `path`, or `None` if there can."""
    if path.is_dir():
        return f"{path}: expected a file to write, found a folder; name a file in it"
    if not path.parent.is_dir():
        return f"{path}: expected a folder {path.parent} to write into, found none; make it first"
    return None


def is_device(path: Path) -> bool:
    """Return whether `path` is a pipe, a terminal or the like, which is written to and not replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which replaces `path` when the block ends without an error.

    After an error, `path` is unchanged, and the new file is removed. Of several writers, the one that ends last wins. A
    link is followed. Raises `OSError`.
    """
    path = path.resolve()
    partial = temp_path(path)
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[TextIO]:
    """Yield a UTF-8 text file that replaces `path` when the block ends without an error; otherwise `path` is unchanged.

    The new file has the permissions of the old one. A link is followed. Raises `OSError`.
    """
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as stream:
        if path.exists():
            partial.chmod(path.stat().st_mode & 0o7777)
        yield stream
