"""Reads of a folder that may be replaced meanwhile, see `bert_runtime.bundle.atomic_folders`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bert_runtime.errors import BundleError

__all__ = ["read_unreplaced"]

_Result = TypeVar("_Result")

_MAX_ATTEMPTS = 20
"""Reads of a folder that is replaced again and again. A judgement: replacing takes longer than reading."""


def read_unreplaced(folder: Path, read: Callable[[], _Result]) -> _Result:
    """Return the result of `read`, which opens several files of a folder by their paths.

    If the path leads to another folder afterwards, files of both may have been mixed or missed: `read` is called again.

    Args:
        folder: the folder.
        read: reads it. What it raises is raised, unless the folder was replaced.

    Raises:
        BundleError: the folder is replaced again and again.
    """
    for _ in range(_MAX_ATTEMPTS):
        with _opened(folder) as descriptor:
            try:
                result = read()
            except Exception:
                if _is_at(folder, descriptor):
                    raise
            else:
                if _is_at(folder, descriptor):
                    return result
    raise BundleError(f"{folder}: was replaced during each of {_MAX_ATTEMPTS} attempts to read it; try again")


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Keep a folder open, so that no new one gets its inode; yield `None` where it cannot be opened."""
    try:
        descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY))
    except (OSError, ValueError):  # ValueError for a NUL in the path
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(folder: Path, descriptor: int | None) -> bool:
    """Return whether a path leads to the opened folder; true where none could be opened."""
    if descriptor is None:
        return True
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except OSError:
        return False
