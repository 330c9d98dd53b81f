"""Dataclasses as JSON and back, with an error that names the key at fault."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bert_runtime.errors import BundleError
from bert_runtime.tasks import Task, task_from_dict

__all__ = ["from_plain", "to_json", "to_plain"]

_Part = TypeVar("_Part")


def json_key(part: "Field[Any]") -> str:
    """Return the JSON key of a dataclass field: its name, or `metadata["key"]` where the format has another word."""
    return str(part.metadata.get("key", part.name))


def to_json(values: Any) -> str:
    """JSON text of several lines, with lists of plain values on one; ends with a line break."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    # A JSON string holds no line break that this could touch.
    return re.sub(r"\[\n[^\[\]{}]*\]", lambda match: re.sub(r"\n\s*", " ", match[0]), text) + "\n"


def to_plain(value: Any) -> Any:
    """Dataclasses and tuples as the dictionaries and lists that JSON knows."""
    if isinstance(value, Task):
        return to_plain(value.to_dict())
    if hasattr(value, "__dataclass_fields__"):
        return {json_key(f): to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[_Part], values: Any, where: str = "") -> _Part:
    """A dataclass from JSON values, checking presence and type of every field; `where` is the path of keys.

    Raises `BundleError`.
    """
    values = _checked(values, dict, where or "manifest")
    hints = get_type_hints(kind)
    keys = {json_key(part): part for part in fields(kind)}  # type: ignore[arg-type]
    missing = [
        key
        for key, part in keys.items()
        if key not in values and part.default is MISSING and part.default_factory is MISSING
    ]
    if missing:
        raise BundleError(f"{where or 'manifest'}: missing {', '.join(map(repr, missing))}")
    return kind(
        **{
            part.name: _value(hints[part.name], values[key], f"{where}.{key}".lstrip("."))
            for key, part in keys.items()
            if key in values
        }
    )


def _value(hint: Any, value: Any, where: str) -> Any:
    """A JSON value as the type `hint` asks for."""
    if hint is Task:
        return task_from_dict(_checked(value, dict, where))
    if is_dataclass(hint):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(_value(item, each, f"{where}[{i}]") for i, each in enumerate(_checked(value, list, where)))
    if get_origin(hint) is Mapping:
        item = get_args(hint)[1]
        return {key: _value(item, each, f"{where}.{key}") for key, each in _checked(value, dict, where).items()}
    if get_origin(hint) is UnionType:
        part = next((each for each in get_args(hint) if is_dataclass(each)), None)
        if part is None:
            return _checked(value, get_args(hint), where)
        return None if value is None else _value(part, value, where)
    if hint is Any:
        return tuple(value) if isinstance(value, list) and where.startswith("self_test_inputs") else value
    return float(_checked(value, (int, float), where)) if hint is float else _checked(value, hint, where)


_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def _checked(value: Any, kind: type[Any] | tuple[type[Any], ...], where: str) -> Any:
    """`value` if it is of that type; raises `BundleError` otherwise. A boolean is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(_JSON_NAMES.get(each, "null") for each in kinds)
        raise BundleError(f"{where}: expected {names}, found {value!r:.80}")
    return value
