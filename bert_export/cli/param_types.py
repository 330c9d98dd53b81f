"""Types of command-line parameters."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

__all__ = [
    "CHECKPOINT",
    "PATH",
    "ColumnsType",
    "DevicesType",
    "DurationType",
    "NamesType",
    "NumbersType",
    "TokensType",
]

if TYPE_CHECKING:
    _Columns = click.ParamType[dict[str, str]]
    _Names = click.ParamType[tuple[str, ...]]
    _Numbers = click.ParamType[tuple[float, ...]]
    _Devices = click.ParamType[int | str]
    _Tokens = click.ParamType[int | str]
    _Duration = click.ParamType[float]
else:  # click.ParamType is generic in recent releases only
    _Columns = _Names = _Numbers = _Devices = _Tokens = _Duration = click.ParamType


class _PathType(click.Path):
    """A path that the system can open."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "\0" in str(value):
            self.fail(f"expected a path, found one with the character NUL: {str(value)!r}", param, ctx)
        return super().convert(value, param, ctx)


PATH = _PathType(path_type=Path)

CHECKPOINT = click.STRING
"""A folder or a hub id. Not a path type, which would normalize the folder `./name` to `name`, a possible hub id."""


class ColumnsType(_Columns):
    """Comma-separated `FIELD=COLUMN` pairs."""

    name = "FIELD=COLUMN,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        pairs = [pair.partition("=") for pair in str(value).split(",")]
        if not all(field.strip() and column.strip() for field, _, column in pairs):
            self.fail(f"expected pairs such as text=sentence,label=category, found {value!r}", param, ctx)
        return {field.strip(): column.strip() for field, _, column in pairs}


class NamesType(_Names):
    """Comma-separated names."""

    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = value if isinstance(value, tuple) else tuple(name.strip() for name in str(value).split(","))
        if not all(names):
            self.fail(f"expected comma-separated names, found {value!r}", param, ctx)
        return names


class NumbersType(_Numbers):
    """Comma-separated numbers."""

    name = "NUMBER,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(float(number) for number in str(value).split(","))
        except ValueError:
            self.fail(f"expected comma-separated numbers, found {value!r}", param, ctx)


class DevicesType(_Devices):
    """A number of at least 1, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        return click.IntRange(min=1).convert(value, param, ctx)


class TokensType(_Tokens):
    """A number of tokens of at least 3, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        return click.IntRange(min=3).convert(value, param, ctx)


class DurationType(_Duration):
    """A duration such as `90s`, `45m` or `1.5h`, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value).strip())
        if found is None:
            self.fail(f"expected a duration such as 90s, 45m or 1.5h, found {value!r}", param, ctx)
        return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
