"""Small JSON files of a checkpoint, read with errors that name them, and folders written whole or not at all."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from bert_models.errors import CheckpointError
from bert_runtime.errors import BertError

__all__ = ["atomic_replace_dir", "read_json", "umask", "unowned_files", "write_json"]


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """The JSON value in `path`, which must be of `kind`; raises `CheckpointError` otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(value, kind):
        raise CheckpointError(f"{path}: expected a JSON {kind.__name__}, found {type(value).__name__}")
    return value


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented UTF-8 JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def unowned_files(folder: Path, own: Sequence[str]) -> list[str]:
    """What lies in a folder beside what the patterns in `own` name, and would be lost where it is replaced."""
    return sorted(each.name for each in folder.iterdir() if not any(map(each.match, own)))


@contextmanager
def atomic_replace_dir(target: Path) -> Iterator[Path]:
    """A new folder beside `target` to write into, which takes its place when the block ends without an error.

    On an error, Ctrl-C or SIGTERM nothing at `target` has changed and nothing is left behind. Raises `BertError` where
    the place cannot be written to, a full disk included.
    """
    target = target.resolve()
    if Path.cwd().resolve().is_relative_to(target):
        raise BertError(f"{target}: is the folder you stand in, which cannot be replaced; choose another place")
    new_parents = [each for each in (target.parent, *target.parent.parents) if not each.exists()]
    building: Path | None = None

    def clean_up() -> None:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
        with suppress(OSError):  # not empty: somebody else has written there meanwhile
            for each in new_parents:
                each.rmdir()

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        building.chmod(0o777 & ~umask())  # mkdtemp makes it private; a bundle is to be read like any other folder
        with _before_sigterm(clean_up):
            yield building
        _replace(target, building)
    except BaseException as error:
        clean_up()
        if isinstance(error, OSError):
            raise BertError(f"{target}: cannot be written: {error}") from error
        raise


@contextmanager
def _before_sigterm(clean_up: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGTERM, as from `timeout` or a container that is stopped, ends the process after `clean_up`.

    Nothing is raised: libraries may take it for an error of theirs, as torch's exporter does while it is imported.
    Where the program has a handler it stays, and threads other than the main one cannot set any.
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


def _replace(target: Path, building: Path) -> None:
    """Renames `building` to `target`, and puts back what was there where that fails."""
    retired = building.with_name(building.name + ".old")
    if target.exists():
        target.rename(retired)
    try:
        building.rename(target)
    except OSError:
        if retired.exists():
            retired.rename(target)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def umask() -> int:
    """The process's umask, which can only be read by setting it."""
    current = os.umask(0o022)
    os.umask(current)
    return current
