"""Commands that other packages register as entry points."""

from importlib.metadata import EntryPoint, entry_points

import click

from bert_export.cli.errors import ErrorGroup, provided_by_extra

__all__ = ["ENTRY_POINT_GROUP", "PluginGroup"]

ENTRY_POINT_GROUP = "bert_export.commands"
"""Packages register commands here. The entry point's name is the command's; its value is a `click.Command`."""


class PluginGroup(ErrorGroup):
    """A command group that also has the commands registered under `ENTRY_POINT_GROUP`.

    A registered command is imported when it is run or listed, so the built-in commands start without it. The group's
    own commands take precedence over registered ones of the same name.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the built-in and the registered commands in alphabetical order."""
        return sorted({*super().list_commands(ctx), *_registered()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or one that explains why the registered one cannot be loaded."""
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        entry_point = _registered().get(cmd_name)
        return None if entry_point is None else _load(entry_point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, and warn on stderr of those that are broken."""
        super().format_commands(ctx, formatter)
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if isinstance(command, _UnavailableCommand) and not command.lacks_extra:
                click.echo(f"Warning: {command.reason}", err=True)


class _UnavailableCommand(click.Command):
    """Stands for a registered command that cannot be loaded, and fails with the reason when it is run."""

    def __init__(self, entry_point: EntryPoint, error: Exception) -> None:
        super().__init__(
            entry_point.name,
            add_help_option=False,  # -h, too, gives the reason
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            short_help="Cannot be loaded.",
        )
        distribution = "an unknown package" if entry_point.dist is None else f"package {entry_point.dist.name}"
        self.reason = (
            f"the command {entry_point.name!r} of {distribution} ({entry_point.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        )
        self.error = error

    @property
    def lacks_extra(self) -> bool:
        """Whether installing one of this project's extras is all that it takes."""
        return isinstance(self.error, ModuleNotFoundError) and provided_by_extra(self.error)

    def invoke(self, ctx: click.Context) -> None:
        if self.lacks_extra:
            raise self.error  # `ErrorGroup` names the extra
        raise click.ClickException(self.reason) from self.error


def _registered() -> dict[str, EntryPoint]:
    """Return the registered commands by name; looking them up reads every installed package's metadata."""
    return {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}


def _load(entry_point: EntryPoint) -> click.Command:
    try:
        command = entry_point.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"expected a click.Command, found {type(command).__name__}")
    except Exception as error:  # importing another package's module may raise anything
        return _UnavailableCommand(entry_point, error)
    return command
