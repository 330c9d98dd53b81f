"""The option `--config`: options from a YAML file."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.help import option_group

__all__ = ["config_option"]

_ONE_CALL_ONLY = {"config", "force", "help", "json", "resume"}
"""Options that concern a single call, and so may not be in a file that is used repeatedly."""

_EMPTY = ("", "~", "null")
"""YAML's spellings of a missing value; such a key is ignored."""


def _read_values(command: click.Command, path: Path) -> dict[str, Any]:
    """Read the file's values by parameter name.

    Returns:
        For each parameter the text that would be passed on the command line, a list of such, or a mapping of texts.

    Raises:
        click.UsageError: the file is no YAML mapping, or a key is no option; the message names all unknown keys.
    """
    options = {option.opts[0].lstrip("-"): option for option in command.params}
    options = {name: option for name, option in options.items() if name not in _ONE_CALL_ONLY}
    found = {name.replace("_", "-"): value for name, value in _read_yaml(path).items() if value not in _EMPTY}
    if unknown := [name for name in found if name not in options]:
        raise click.UsageError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(options))}")
    repeatable = {name for name in found if getattr(options[name], "multiple", False)}
    if lists := [name for name, value in found.items() if isinstance(value, list) and name not in repeatable]:
        raise click.UsageError(f"{path}: expected one value for {', '.join(lists)}, found a list")
    return {
        str(options[name].name): [value] if name in repeatable and isinstance(value, str) else value
        for name, value in found.items()
    }


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml  # of the extra `train`; BaseLoader leaves every value as the text that is written

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path}: not a YAML file: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"{path}: expected flags and their values, found a {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def _set_defaults(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.default_map = _read_values(context.command, path)


config_option = option_group("Run")(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_set_defaults,
    is_eager=True,  # before the options that it gives values to
    expose_value=False,
    help="YAML file of options, such as `batch-size: 16`. Options on the command line take precedence.",
)
"""Reads defaults of a command's options from a file."""
