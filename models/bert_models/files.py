"""Small JSON files of a checkpoint, read with errors that name them, and folders written whole or not at all."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError
from bert_runtime.errors import BertError

__all__ = ["read_json", "replaced_folder", "write_json"]


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


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target` to write into, which takes its place when the block ends without an error.

    On an error nothing at `target` has changed and nothing is left behind.
    """
    new_parent = next((each for each in reversed([target.parent, *target.parent.parents]) if not each.exists()), None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BertError(f"{target}: cannot be written: {error}") from None
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    building.chmod(0o755)  # mkdtemp makes it private; a bundle is to be read like any other folder
    retired = building.with_name(building.name + ".old")
    try:
        yield building
        if target.exists():
            target.rename(retired)
        building.rename(target)
    except BaseException:
        if retired.exists() and not target.exists():
            retired.rename(target)
        shutil.rmtree(building, ignore_errors=True)
        if new_parent is not None:
            shutil.rmtree(new_parent, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)
