"""JSON files of a checkpoint, and a check for files that replacing a folder would lose."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_models.errors import CheckpointError

__all__ = ["read_json", "unowned_files", "write_json"]


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Read the JSON value in `path`.

    Args:
        path: a UTF-8 file.
        kind: the Python type that the value must have.

    Raises:
        CheckpointError: the file is missing, not JSON, or of another type.
    """
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
    """Write `value` to `path` as indented UTF-8 JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def unowned_files(folder: Path, own: Sequence[str]) -> list[str]:
    """Return the names in `folder` that match none of the glob patterns `own`; replacing the folder would lose them."""
    return sorted(path.name for path in folder.iterdir() if not any(map(path.match, own)))
