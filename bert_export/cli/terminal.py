"""Tables on stdout: drawn by rich where that is a terminal, aligned text otherwise."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["format_table", "is_terminal", "print_heading", "print_table", "print_text", "rich_console"]


def is_terminal(stream: IO[Any] | None) -> bool:
    """Return whether a stream is a terminal that can draw."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def rich_console(*, stderr: bool = False) -> "Console":
    """Return a console that prints texts as they are, without markup, emoji codes or guessed colours."""
    from rich.console import Console  # 30 ms, which output to pipes and files does not need

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_heading(text: str) -> None:
    """Print a line in bold."""
    click.secho(text, bold=True)


def print_text(text: str) -> None:
    """Print text; in a terminal, its lines end between words."""
    if is_terminal(sys.stdout):
        rich_console().print(text)
    else:
        click.echo(text)


def print_table(rows: Iterable[Sequence[Any]], *, has_header: bool = False) -> None:
    """Print rows with aligned columns, see `format_table`; in a terminal, long cells are wrapped."""
    cells = [list(row) for row in rows]
    if not is_terminal(sys.stdout):
        click.echo(format_table(cells, has_header=has_header))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    header, body = (cells[0], cells[1:]) if has_header else ([""] * len(cells[0]), cells)
    table = Table(box=SIMPLE_HEAD if has_header else None, show_header=has_header, show_edge=False, pad_edge=False)
    for index, name in enumerate(header):
        right = all(_is_quantity(row[index]) for row in body)
        table.add_column(str(name), justify="right" if right else "left", overflow="fold", no_wrap=right or index == 0)
    for row in body:
        table.add_row(*map(_format_cell, row))
    rich_console().print(table)


def format_table(rows: Iterable[Sequence[Any]], *, has_header: bool = False) -> str:
    """Format rows as text with aligned columns: numbers right, everything else left.

    Args:
        rows: the cells; floats have four decimals.
        has_header: whether the first row has the names of columns; columns of numbers, also with units, then stand
            right with their names.
    """
    cells = [list(row) for row in rows]
    texts = [list(map(_format_cell, row)) for row in cells]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    if has_header:
        columns = [all(map(_is_quantity, column)) for column in zip(*cells[1:], strict=True)]
        right = [columns] * len(cells)
    else:
        right = [[isinstance(cell, int | float) for cell in row] for row in cells]
    lines = (
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, row_right, strict=True)
        )
        for row, row_right in zip(texts, right, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)


def _format_cell(cell: Any) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _is_quantity(cell: Any) -> bool:
    """Return whether a cell is a number, or one with a unit such as `90.3 MB`."""
    return isinstance(cell, int | float) or re.fullmatch(r"-|[\d.]+(×| [A-Za-z]+)?", str(cell)) is not None
