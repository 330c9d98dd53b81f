"""Hidden folders that new contents are built in: locked while their process lives, removed by the next one after that.

The lock is that of `folder_lock`. Where there are no such locks, leftovers of dead processes stay.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bert_runtime.bundle.folder_lock import lock_folder, unlock_folder

__all__ = ["RETIRED_SUFFIX", "keep_building_folder", "locked", "locked_building_folder", "remove_leftovers"]

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
        descriptor = lock_folder(folder, wait=True)
        if folder.exists():
            break
        unlock_folder(descriptor)  # another process found it before it was locked, and removed it
    try:
        yield folder
    finally:
        unlock_folder(descriptor)


def keep_building_folder(folder: Path) -> Path:
    """Rename a building folder so that it is visible and no leftover, and return its new path."""
    kept = folder.with_name(folder.name.removeprefix(".").removesuffix(_SUFFIX))
    folder.rename(kept)
    return kept


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from removing a folder as a leftover within the block, whatever it is renamed to."""
    descriptor = lock_folder(folder, wait=True)
    try:
        yield
    finally:
        unlock_folder(descriptor)


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
    try:
        descriptor = lock_folder(folder, wait=False)
    except BlockingIOError:
        return
    if descriptor is None:
        return
    try:
        if folder.name.endswith(RETIRED_SUFFIX) and not output.exists():
            folder.rename(output)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        unlock_folder(descriptor)
