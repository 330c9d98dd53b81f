"""Check the types of configuration fields that come from JSON, and the limit of their sizes."""

import sys
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from bert_models.pruning_schedule import TokenPruning

__all__ = ["MAX_SIZE", "type_problems"]

MAX_SIZE = 2**24
"""Largest vocabulary, width or number of positions: 64 times that of any published model. A judgement."""


def type_problems(config: type, values: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> list[str]:
    """Return what is wrong with the types of a configuration's fields; numbers must be finite, too.

    Args:
        config: the dataclass, whose annotations say what each field takes.
        values: values of fields, such as those of a checkpoint's `config.json`.
        keys: what the messages call the fields, by default their own names.
    """
    hints = get_type_hints(config)
    return [
        f"{(keys or {}).get(name, name)} must be {_KINDS[kind]}, found {value!r:.80}"
        for name, value in values.items()
        for kind in [_kind(hints[name])]
        if not (_has_kind(value, kind) or (value is None and NoneType in get_args(hints[name])))
    ]


_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a finite number",
    str: "a name",
    bool: "true or false",
    tuple: "whole numbers",
    TokenPruning: "a schedule of token pruning",
}
"""Types of the fields, as error messages call them."""


def _kind(hint: Any) -> type:
    """Return the type of a field that may also be `None`."""
    if get_origin(hint) is tuple:
        return tuple
    return next((kind for kind in get_args(hint) if kind is not NoneType), hint)


def _has_kind(value: Any, kind: type) -> bool:
    if kind is float:  # comparisons are false for NaN
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind is tuple:
        return isinstance(value, tuple) and all(_has_kind(item, int) for item in value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
