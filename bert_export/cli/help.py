"""Help texts: commands in sections, options in groups, and examples.

click's own formatter does it; libraries for this need a newer click than applications that embed the runtime may have.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import click

__all__ = ["Decorator", "ExampleCommand", "HelpContext", "SectionedGroup", "option_group"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that adds options to a command."""

_MAX_WIDTH = 100
_MAX_NAME_WIDTH = 26
_OTHER_OPTIONS = "Other options"


class _HelpFormatter(click.HelpFormatter):
    """Headings in bold, which `click.echo` drops where the output is no terminal."""

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{click.style(f'{heading}:', bold=True)}\n")


class HelpContext(click.Context):
    """A context whose help is at most 100 columns wide, and without colour where the user asked for none (NO_COLOR)."""

    formatter_class = _HelpFormatter

    def __init__(self, *args: Any, **settings: Any) -> None:
        defaults: dict[str, Any] = {"max_content_width": _MAX_WIDTH, "help_option_names": ["-h", "--help"]}
        super().__init__(*args, **defaults | settings)
        if os.environ.get("NO_COLOR"):
            self.color = False


class GroupedOption(click.Option):
    """An option that help lists under the title of its group, with a long choice in its text instead of its name."""

    def __init__(self, *args: Any, group: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group
        if self.metavar is None and isinstance(self.type, click.Choice):
            choices = list(map(str, self.type.choices))
            if len(f"{self.opts[0]} [{'|'.join(choices)}]") > _MAX_NAME_WIDTH:
                self.metavar = self.opts[0].rpartition("-")[2].upper()
                if not all(re.search(rf"\b{re.escape(choice)}\b", self.help or "") for choice in choices):
                    self.help = f"{self.help or ''} One of {', '.join(choices)}.".strip()


def option_group(title: str) -> Callable[..., Decorator]:
    """Return `click.option` for options of a group."""
    return partial(click.option, cls=GroupedOption, group=title)


class ExampleCommand(click.Command):
    """A command whose help lists the options in groups, in the order of their definition, and ends with examples.

    Args:
        *args: as for `click.Command`.
        examples: command lines, and comments above them.
        **attributes: as for `click.Command`.
    """

    context_class = HelpContext

    def __init__(self, *args: Any, examples: Sequence[str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(option, "group", _OTHER_OPTIONS), []).append(record)
        groups[_OTHER_OPTIONS] = groups.pop(_OTHER_OPTIONS, [])  # last
        _format_sections(groups, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _format_examples(self.examples, formatter)


class SectionedGroup(click.Group):
    """A command group whose help lists the commands in sections, and ends with examples."""

    context_class = HelpContext

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of commands by the title of their section; all others follow under another title."""
    examples: ClassVar[Sequence[str]] = ()
    """As of `ExampleCommand`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the first sentence of their help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        width = formatter.width - 2 - max(map(len, commands)) - 2
        records = {
            name: (name, command.get_short_help_str(width))
            for name, command in commands.items()
            if command is not None and not command.hidden
        }
        sections = {
            title: [records.pop(name) for name in names if name in records] for title, names in self.sections.items()
        }
        _format_sections(sections | {"Other commands" if sections else "Commands": list(records.values())}, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


def _format_sections(sections: Mapping[str, Sequence[tuple[str, str]]], formatter: click.HelpFormatter) -> None:
    """Write names and texts under titles, with the texts of all sections in one column; skip empty sections."""
    widths = [len(name) for records in sections.values() for name, _ in records]
    width = max((width for width in widths if width <= _MAX_NAME_WIDTH), default=0)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in records], col_max=width)


def _format_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
