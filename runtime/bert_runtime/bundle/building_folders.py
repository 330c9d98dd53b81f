"""Hidden folders that new contents are built in: locked while their process lives, removed by the next one after that.

The lock is an advisory one on the folder itself (`flock`), which the system releases when the process ends, however it
ends. Where there are no such locks, leftovers of dead processes stay.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["RETIRED_SUFFIX", "locked", "locked_building_folder", "remove_leftovers"]

_SUFFIX = ".partial"

RETIRED_SUFFIX = ".old"
"""Added to a building folder's name for the contents that it replaces, where the two cannot be exchanged."""


@contextmanager
def locked_building_folder(output: Path) -> Iterator[Path]:
    """Yield a new hidden folder next to `output`, locked within the block. The caller renames or removes it.

    Raises:
        OSError: it cannot be created.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=_SUFFIX, dir=output.parent))
        descriptor = _lock(folder, wait=True)
        if folder.exists():
            break
        _unlock(descriptor)  # another process found it before it was locked, and removed it
    try:
        yield folder
    finally:
        _unlock(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from removing a folder as a leftover within the block, whatever it is renamed to."""
    descriptor = _lock(folder, wait=True)
    try:
        yield
    finally:
        _unlock(descriptor)


def remove_leftovers(output: Path) -> None:
    """Remove the hidden folders of processes that were killed while they replaced `output`.

    A process that was killed between two renames has left no `output`, but its old contents, which are restored.
    """
    pattern = re.compile(re.escape(f".{output.name}.") + rf"[a-z0-9_]{{8}}{re.escape(_SUFFIX)}")
    with suppress(OSError):
        for entry in sorted(output.parent.iterdir()):
            if pattern.fullmatch(entry.name.removesuffix(RETIRED_SUFFIX)) and entry.is_dir() and not entry.is_symlink():
                _remove_leftover(entry, output)


def _remove_leftover(folder: Path, output: Path) -> None:
    descriptor = _lock(folder, wait=False)
    if descriptor is None:  # in use, or without locks
        return
    try:
        if folder.name.endswith(RETIRED_SUFFIX) and not output.exists():
            folder.rename(output)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        _unlock(descriptor)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder; return a descriptor for `_unlock`, or `None` where it is in use or cannot be locked."""
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        _unlock(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
