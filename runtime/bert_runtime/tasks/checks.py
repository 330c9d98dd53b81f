"""Validation of task settings, which come from callers, command lines and files."""

from typing import Any

__all__ = ["check_flag", "check_int", "check_number", "check_strings"]


def check_int(name: str, value: Any, minimum: int) -> None:
    """Raise `ValueError` unless `value` is an int of at least `minimum`; a bool is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"expected {name} to be a whole number of at least {minimum}, found {value!r}")


def check_number(name: str, value: Any, minimum: float = float("-inf"), maximum: float = float("inf")) -> None:
    """Raise `ValueError` unless `value` is an int or a float from `minimum` to `maximum`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
        limits = "" if minimum == float("-inf") else f" in {minimum:g} to {maximum:g}"
        raise ValueError(f"expected {name} to be a number{limits}, found {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be true or false, found {value!r}")


def check_strings(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is a tuple of strings that can be written as UTF-8."""
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected {name} to be a list of strings, found {value!r:.80}")
    for item in value:
        if not item.isascii() and any("\ud800" <= character <= "\udfff" for character in item):
            raise ValueError(f"expected {name} without lone surrogates, found {item!r:.80}")
