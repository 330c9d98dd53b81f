"""`--config`: flags from a YAML file."""

from pathlib import Path
from typing import Any

import click

__all__ = ["config_option"]

_FOR_ONE_CALL = {"config", "force", "help", "json", "resume"}
"""Flags that say something about one call, and would do harm if a file repeated them."""

_NOTHING = ("", "~", "null")
"""YAML's ways to write a key without a value: as if it were not there."""


def _values(command: click.Command, path: Path) -> dict[str, Any]:
    """The file's values by parameter; each is the text that would stand on the command line, or a mapping of texts.

    Raises `click.UsageError` that names every key which is no flag.
    """
    import yaml  # an extra; its loader is the one that leaves every value as it is written

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path}: not a YAML file: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"{path}: expected flags and their values, found a {type(found).__name__}")
    flags = {option.opts[0].lstrip("-"): str(option.name) for option in command.params}
    flags = {flag: name for flag, name in flags.items() if flag not in _FOR_ONE_CALL}
    given = {str(key).replace("_", "-"): value for key, value in found.items() if value not in _NOTHING}
    if unknown := [key for key in given if key not in flags]:
        raise click.UsageError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(flags))}")
    repeated = {flags[key] for key in given} & {
        str(option.name) for option in command.params if getattr(option, "multiple", False)
    }
    if lists := [key for key, value in given.items() if isinstance(value, list) and flags[key] not in repeated]:
        raise click.UsageError(f"{path}: expected one value for {', '.join(lists)}, found a list")
    values = {flags[key]: value for key, value in given.items()}
    return {name: [value] if name in repeated and isinstance(value, str) else value for name, value in values.items()}


def _read(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.default_map = _values(context.command, path)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_read,
    is_eager=True,  # before the flags that it gives values to
    expose_value=False,
    help="YAML file with flags and their values, such as `batch-size: 16`; flags on the command line go first.",
)
"""Takes the defaults of a command's flags from a file."""
