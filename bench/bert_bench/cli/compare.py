"""`bert-bench compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import json_option, output_option
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH

if TYPE_CHECKING:
    from bert_bench.reports.report_diff import Change

__all__ = ["compare"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-bench compare before/result.json after/result.json --fail",
    ],
)
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@output_option(
    "--least", "min_percent", type=float, default=5.0, show_default=True, help="Report changes above this percentage."
)
@output_option(
    "--fail",
    is_flag=True,
    help="Exit with 1 if anything got slower by more than --least, or was not timed again.",
)
@json_option
def compare(before: Path, after: Path, min_percent: float, fail: bool, as_json: bool) -> None:
    """List what got slower or faster between two runs.

    BEFORE and AFTER are the result.json files of two runs. A change counts if their rounds do not overlap (p10 to p90),
    given at least three rounds each.
    """
    from bert_bench.reports.read_report import read_report
    from bert_bench.reports.report_diff import compare_reports

    difference = compare_reports(read_report(before), read_report(after))
    factor = 1 + min_percent / 100
    slower, faster = difference.slower(factor), difference.faster(factor)
    if as_json:
        print_json(difference.to_dict())
    else:
        click.echo(_block("Slower", slower))
        click.echo(_block("Faster", faster))
        click.echo(
            f"{len(difference.changes) - len(slower) - len(faster)} others are within {min_percent:g} % or the noise."
        )
        lines = [f"Only before: {', '.join(difference.only_before)}"] * bool(difference.only_before)
        lines += [f"Not timed again: {', '.join(difference.missing)}"] * bool(difference.missing)
        lines += [f"Only after: {', '.join(difference.only_after)}"] * bool(difference.only_after)
        if difference.machine_speed is not None:
            lines.append(f"The machine's peak FP32 matmul ran at {difference.machine_speed:.2f} of its speed before.")
        for line in (*lines, *difference.notes):
            click.echo(line)
    if fail and slower:
        raise click.ClickException(f"{len(slower)} cases got slower by more than {min_percent:g} %")
    if fail and (gone := [*difference.only_before, *difference.missing]):
        raise click.ClickException(f"expected what was timed before, found no {', '.join(gone)}")


def _block(title: str, changes: "Sequence[Change]") -> str:
    from bert_runtime.timing import format_ms

    lines = [
        f"  {change.engine:32} {change.case:20} {format_ms(change.before_ms):>8} → {format_ms(change.after_ms):>8} ms"
        f"  {change.ratio:.2f}×"
        for change in changes
    ]
    return "\n".join([f"{title}: {len(changes)}", *lines])
