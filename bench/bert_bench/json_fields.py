"""Dataclasses as JSON values and back; a field's JSON key is its name or `metadata["key"]`."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from bert_runtime.bundle.schema import json_key

__all__ = ["field_values", "to_json_values"]


def to_json_values(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences and paths to JSON values; numbers that are not finite become `None`."""
    if is_dataclass(value):
        return {json_key(part): to_json_values(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def field_values(dataclass: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON values of a dataclass's fields by field name; missing and other keys are left out."""
    keys = {json_key(part): part.name for part in fields(dataclass)}
    return {name: values[key] for key, name in keys.items() if key in values}
