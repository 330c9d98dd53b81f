"""Small JSON files of a checkpoint, read with errors that name them, and the files that a folder must not lose."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError

__all__ = ["read_json", "unowned_files", "write_json"]


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
