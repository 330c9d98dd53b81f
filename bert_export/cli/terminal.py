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


def print_table(rows: Iterable[Sequence[Any]], *, has_header: bool = False, align_right: bool = False) -> None:
    """Print rows with aligned columns, see `format_table`; in a terminal, long cells are wrapped.

    Args:
        rows: the cells.
        has_header: see `format_table`.
        align_right: whether all columns but the first stand right in a terminal.
    """
    cells = [list(row) for row in rows]
    if not is_terminal(sys.stdout):
        click.echo(format_table(cells, has_header=has_header))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = rich_console()
    header, body = (cells[0], cells[1:]) if has_header else ([""] * len(cells[0]), cells)
    texts = [list(map(_format_cell, row)) for row in body]
    table = Table(box=SIMPLE_HEAD if has_header else None, show_header=has_header, show_edge=False, pad_edge=False)
    natural = sum(max(map(len, column)) + 3 for column in zip(header, *texts, strict=True))
    for index, name in enumerate(header):
        right = (align_right and index > 0) or all(_is_quantity(row[index]) for row in body)
        narrow = natural > console.width and (right or index == 0)
        width = _min_width(name, [row[index] for row in texts]) if narrow else None
        table.add_column(name, justify="right" if right else "left", overflow="fold", width=width)
    for row in texts:
        table.add_row(*row)
    console.print(table)


def _min_width(name: str, texts: Sequence[str]) -> int:
    """Return the width of a column in which no cell is broken, and its name between words only."""
    return max(map(len, (*re.findall(r"[^ _-]+[_-]?", name), *texts)))


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
