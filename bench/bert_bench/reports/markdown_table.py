"""A Markdown table whose source is aligned."""

from collections.abc import Sequence

__all__ = ["MISSING", "markdown_table"]

MISSING = "–"
"""Cell without a value."""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_names: int = 1) -> str:
    """Return a table padded to its widest cells: the first `num_names` columns to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    names, numbers = widths[:num_names], widths[num_names:]
    rule = [*("-" * width for width in names), *("-" * (width - 1) + ":" for width in numbers)]
    lines = []
    for row in (header, rule, *rows):
        left = [cell.ljust(width) for cell, width in zip(row[:num_names], names, strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[num_names:], numbers, strict=True)]
        lines.append(f"| {' | '.join([*left, *right])} |")
    return "\n".join(lines)
