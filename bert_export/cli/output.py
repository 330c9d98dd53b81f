"""Output of the commands: results on stdout, progress on stderr."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

__all__ = ["format_table", "is_rank_zero", "print_json", "print_training_report", "progress_printer"]


def progress_printer() -> Callable[[str], None]:
    """Return a progress callback that prints each stage on stderr, with the seconds since now."""
    start = time.monotonic()

    def report_progress(stage: str) -> None:
        click.echo(f"{time.monotonic() - start:6.1f} s  {stage}", err=True)

    return report_progress


def is_rank_zero() -> bool:
    """Return whether this is the first of the processes that torchrun or Lightning started, the one that prints."""
    # Schedulers set RANK without starting further processes, so it counts under torchrun only.
    names = ("RANK",) if "TORCHELASTIC_RUN_ID" in os.environ else ("LOCAL_RANK", "NODE_RANK")
    return all(os.environ.get(name, "0") in ("0", "") for name in names)


def print_json(value: Any) -> None:
    """Print a JSON value on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_training_report(report: Mapping[str, Any], measurements: str, output: Path, *, as_json: bool) -> None:
    """Print the report of a training run, in its first process only.

    Args:
        report: the report.
        measurements: key of the list of measurements, such as `epochs`.
        output: the checkpoint that was written.
        as_json: print the report as JSON instead of text.
    """
    if not is_rank_zero():
        return
    if as_json:
        print_json(report)
        return
    rows = report[measurements]
    click.echo(format_table([list(rows[0]), *(list(row.values()) for row in rows)]))
    if report.get("stopped_early"):
        click.echo(f"stopped early: no better {report['metric']} in {report['settings']['patience']} epochs")
    if "best" in report:
        click.echo(f"best: epoch {report['best']['epoch']}, {report['metric']} {report['best'][report['metric']]:.4f}")
    click.echo(f"wrote {output}")


def format_table(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as text with aligned columns: numbers right, everything else left."""
    values = [list(row) for row in rows]
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in values]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            text.rjust(width) if isinstance(cell, int | float) else text.ljust(width)
            for cell, text, width in zip(row, texts, widths, strict=True)
        )
        for row, texts in zip(values, cells, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)
