"""A Markdown table whose source is aligned."""

from collections.abc import Sequence

__all__ = ["MISSING", "markdown_table"]

MISSING = "–"
"""Cell without a value."""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table padded to its widest cells: first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for first, *others in (header, rule, *rows):
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"| {' | '.join([first.ljust(widths[0]), *padded])} |")
    return "\n".join(lines)
