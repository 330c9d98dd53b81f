"""Folders that are replaced atomically: a reader finds the old contents or the new ones, never a part of either.

The runtime writes no folders. The exporter, the trainer and the benchmark share this module.
"""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from bert_runtime.bundle.building_folders import (
    RETIRED_SUFFIX,
    keep_building_folder,
    locked,
    locked_building_folder,
    remove_leftovers,
)
from bert_runtime.bundle.exchange import exchange_folders
from bert_runtime.errors import BertError

__all__ = ["atomic_replace_dir", "check_replaceable", "is_free", "umask", "unowned_files"]


def check_replaceable(output: Path) -> None:
    """Raise `BertError` if `output` is a mount point, or is or contains the current directory."""
    output = output.resolve()
    if output.is_mount():
        raise BertError(f"{output}: is a mount point, which cannot be replaced; name a folder in it")
    if Path.cwd().resolve().is_relative_to(output):
        raise BertError(
            f"{output}: is or contains the current directory, which cannot be replaced; name another folder"
        )


def is_free(output: Path) -> bool:
    """Return whether there is nothing at `output`, or an empty folder, so that nothing can be lost."""
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


def unowned_files(folder: Path, own: Sequence[str]) -> list[str]:
    """Return the names in `folder` that match none of the glob patterns `own`; replacing the folder would lose them."""
    return sorted(path.name for path in folder.iterdir() if not any(map(path.match, own)))


@contextmanager
def atomic_replace_dir(output: Path, problem: Callable[[], str | None] = lambda: None) -> Iterator[Path]:
    """Yield a new folder next to `output`, and rename it to `output` when the block ends without an error.

    On Linux, an old folder is exchanged for the new one in one step, where the file system can (ext4, XFS, Btrfs,
    tmpfs, overlayfs): `output` exists at every moment. Elsewhere it is missing for a moment between two renames.

    On an error, Ctrl-C or SIGTERM, `output` is unchanged and nothing is left behind. What a killed process (SIGKILL)
    leaves behind is a hidden folder, which the next replacement of `output` removes.

    Args:
        output: the folder to create or replace. Missing parents are created. A link is followed.
        problem: returns why `output` may not be replaced, or `None` if it may. Called before the block, and again right
            before the replacement: something else may be there by then. The new folder is kept next to it in that case.

    Raises:
        BertError: see `check_replaceable` and `problem`, or `output` cannot be written to (a full disk included).
    """
    check_replaceable(output)
    if found := problem():
        raise BertError(found)
    output = output.resolve()
    new_parents = [parent for parent in (output.parent, *output.parent.parents) if not parent.exists()]
    building: Path | None = None

    def clean_up() -> None:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
        with suppress(OSError):  # not empty: another process has written there in the meantime
            for parent in new_parents:
                parent.rmdir()

    stack = ExitStack()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(output)
        building = stack.enter_context(locked_building_folder(output))
        building.chmod(0o777 & ~umask())  # mkdtemp makes it private; others may read a bundle like any other folder
        with _cleanup_before_sigterm(clean_up):
            yield building
        if found := problem():
            kept, building = keep_building_folder(building), None
            raise BertError(f"{found}; the result is kept in {kept}")
        _replace(output, building)
    except BaseException as error:
        clean_up()
        if isinstance(error, OSError):
            raise BertError(f"{output}: cannot be written: {error}") from error
        raise
    finally:
        stack.close()


@contextmanager
def _cleanup_before_sigterm(clean_up: Callable[[], None]) -> Iterator[None]:
    """Within the block, let SIGTERM (from `timeout`, or a container that is stopped) call `clean_up` and then exit.

    Raises nothing in the block: libraries may take an exception for an error of their own, as torch's exporter does
    while it is imported. A handler that the program has set is kept, and only the main thread can set one.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        clean_up()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _replace(output: Path, building: Path) -> None:
    """Give `building` the name `output`, and remove the old folder."""
    if not output.exists():
        building.rename(output)
    elif exchange_folders(output, building):
        shutil.rmtree(building, ignore_errors=True)
    else:
        _rename_twice(output, building)


def _rename_twice(output: Path, building: Path) -> None:
    """Rename `building` to `output`, and restore the old folder if that fails."""
    retired = building.with_name(building.name + RETIRED_SUFFIX)
    with locked(output):
        output.rename(retired)
        try:
            building.rename(output)
        except OSError:
            retired.rename(output)
            raise
    shutil.rmtree(retired, ignore_errors=True)


def umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    current = os.umask(0o022)
    os.umask(current)
    return current
