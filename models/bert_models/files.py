"""JSON files of a checkpoint, and the names in them."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

from bert_models.errors import CheckpointError

__all__ = ["finite_json", "is_file_name", "read_json", "read_optional_json", "write_json"]

_MAX_JSON_BYTES = 2**25
"""Parsed JSON takes up to 25 times its size in memory. The largest of published checkpoints, the added tokens of a
vocabulary, have a few megabytes. A judgement."""


def read_json(path: Path, kind: type[Any] = dict) -> Any:
    """Read the JSON value in `path`.

    Args:
        path: a UTF-8 file.
        kind: the Python type that the value must have.

    Raises:
        CheckpointError: the file is missing, too large, not JSON, or of another type.
    """
    try:
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: expected a JSON file of at most {_MAX_JSON_BYTES:,} bytes, found {size:,}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except RecursionError:
        raise CheckpointError(
            f"{path}: expected plain JSON, found lists or objects nested too deeply to read"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(value, kind):
        raise CheckpointError(f"{path}: expected a JSON {kind.__name__}, found {type(value).__name__}")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path` as `read_json` does; it is empty if there is no such file."""
    return read_json(path) if path.is_file() else {}


def is_file_name(name: object) -> TypeGuard[str]:
    """Return whether a value from JSON names a file or folder next to it: without a path, and fit for a file system."""
    return (
        isinstance(name, str)
        and name not in ("", "..")
        and Path(name).name == name
        and name.isprintable()  # neither NUL nor lone surrogates
        and len(name.encode()) <= 255
    )


def finite_json(value: Any) -> Any:
    """Return a JSON value with `None` for numbers that JSON cannot express, such as a metric that is not defined."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_json(item) for key, item in value.items()}
    return [finite_json(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented UTF-8 JSON, see `finite_json`."""
    text = json.dumps(finite_json(value), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
