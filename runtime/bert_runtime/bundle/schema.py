"""Conversion of dataclasses to JSON and back, with errors that name the key at fault."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bert_runtime.errors import BundleError
from bert_runtime.tasks import Task, task_from_dict

__all__ = ["from_plain", "json_key", "to_json", "to_plain"]

_Dataclass = TypeVar("_Dataclass")


def json_key(item: "Field[Any]") -> str:
    """Return the JSON key of a dataclass field: its name, or `metadata["key"]` where the format has another word."""
    return str(item.metadata.get("key", item.name))


def to_json(values: Any) -> str:
    """Return indented JSON text, with lists of plain values on one line; ends with a line break."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    # A JSON string contains no raw line break, so this cannot change one.
    return re.sub(r"\[\n[^\[\]{}]*\]", lambda match: re.sub(r"\n\s*", " ", match[0]), text) + "\n"


def to_plain(value: Any) -> Any:
    """Convert dataclasses and tuples to the dictionaries and lists of JSON."""
    if isinstance(value, Task):
        return to_plain(value.to_dict())
    if hasattr(value, "__dataclass_fields__"):
        return {json_key(item): to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[_Dataclass], values: Any, path: str = "") -> _Dataclass:
    """Build a dataclass from JSON values.

    Args:
        kind: the dataclass.
        values: a JSON object; unknown keys are ignored.
        path: the keys that lead to `values`, for errors.

    Raises:
        BundleError: a key is missing, or its value has the wrong type.
    """
    values = _checked(values, dict, path or "manifest")
    hints = get_type_hints(kind)
    keys = {json_key(item): item for item in fields(kind)}  # type: ignore[arg-type]
    missing = [
        key
        for key, item in keys.items()
        if key not in values and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise BundleError(f"{path or 'manifest'}: missing {', '.join(map(repr, missing))}")
    return kind(
        **{
            item.name: _value(hints[item.name], values[key], f"{path}.{key}".lstrip("."))
            for key, item in keys.items()
            if key in values
        }
    )


def _value(hint: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to the type that `hint` asks for."""
    if hint is Task:
        return task_from_dict(_checked(value, dict, path))
    if is_dataclass(hint):
        return from_plain(hint, value, path)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        values = enumerate(_checked(value, list, path))
        return tuple(_value(arguments[0], item, f"{path}[{index}]") for index, item in values)
    if origin is Mapping:
        return {key: _value(arguments[1], item, f"{path}.{key}") for key, item in _checked(value, dict, path).items()}
    if origin is UnionType:
        return _union_value(arguments, value, path)
    if hint is Any:
        return tuple(value) if isinstance(value, list) and path.startswith("self_test_inputs") else value
    return float(_checked(value, (int, float), path)) if hint is float else _checked(value, hint, path)


def _union_value(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    """Convert a JSON value to a union: of a dataclass and `None`, or of plain types."""
    dataclass = next((kind for kind in kinds if is_dataclass(kind)), None)
    if dataclass is None:
        return _checked(value, kinds, path)
    return None if value is None else _value(dataclass, value, path)


_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def _checked(value: Any, kind: type[Any] | tuple[type[Any], ...], path: str) -> Any:
    """Return `value` if it is of that type, and raise `BundleError` otherwise; a boolean is not a number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(_JSON_NAMES.get(type_, "null") for type_ in kinds)
        raise BundleError(f"{path}: expected {names}, found {value!r:.80}")
    return value
