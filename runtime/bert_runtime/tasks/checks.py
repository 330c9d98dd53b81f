"""Checks of a task's settings, which come from callers, command lines and files."""

from typing import Any

__all__ = ["check_flag", "check_int", "check_number", "check_strings"]


def check_int(name: str, value: Any, least: int) -> None:
    """Raises `ValueError` unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"expected {name} to be a whole number of at least {least}, found {value!r}")


def check_number(name: str, value: Any, least: float = float("-inf"), most: float = float("inf")) -> None:
    """Raises `ValueError` unless `value` is a number from `least` to `most`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        limits = "" if least == float("-inf") else f" in {least:g} to {most:g}"
        raise ValueError(f"expected {name} to be a number{limits}, found {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be true or false, found {value!r}")


def check_strings(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a tuple of strings."""
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"expected {name} to be a list of strings, found {value!r}")
