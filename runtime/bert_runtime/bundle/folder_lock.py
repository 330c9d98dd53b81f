"""Advisory locks on folders (`flock`), which the system releases when the process ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_runtime.errors import BertError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["exclusive", "lock_folder", "unlock_folder"]


@contextmanager
def exclusive(folder: Path, in_use: BertError) -> Iterator[None]:
    """Hold the lock of a folder within the block; where there are no such locks, hold none.

    Args:
        folder: an existing folder.
        in_use: the error to raise where another process, or another block, holds it.
    """
    try:
        descriptor = lock_folder(folder, wait=False)
    except BlockingIOError:
        raise in_use from None
    try:
        yield
    finally:
        unlock_folder(descriptor)


def lock_folder(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder; return a descriptor for `unlock_folder`, or `None` where it cannot be locked.

    Raises:
        BlockingIOError: the folder is in use, and `wait` is false.
    """
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        unlock_folder(descriptor)
        raise
    except OSError:
        unlock_folder(descriptor)
        return None
    return descriptor


def unlock_folder(descriptor: int | None) -> None:
    """Release what `lock_folder` returned."""
    if descriptor is not None:
        os.close(descriptor)
