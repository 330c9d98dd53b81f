"""`bert-bench compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.common import PATH, json_option, print_json

if TYPE_CHECKING:
    from bert_bench.reports.report_diff import Change

__all__ = ["compare"]


@click.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@click.option(
    "--least", type=float, default=5.0, show_default=True, help="Report changes of more than so many percent."
)
@click.option("--fail", is_flag=True, help="Exit with 1 if anything got slower by more than that.")
@json_option
def compare(before: Path, after: Path, least: float, fail: bool, as_json: bool) -> None:
    """Say what got slower and what got faster from run BEFORE to run AFTER.

    A change counts where the rounds of the two runs do not overlap.
    """
    from bert_bench.reports.read_report import read_report
    from bert_bench.reports.report_diff import compare_reports

    found = compare_reports(read_report(before), read_report(after))
    factor = 1 + least / 100
    slower, faster = found.slower(factor), found.faster(factor)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(_block("Slower", slower))
        click.echo(_block("Faster", faster))
        click.echo(f"{len(found.changes) - len(slower) - len(faster)} others are within {least:g} % or the noise.")
        lines = [f"Only before: {', '.join(found.only_before)}"] * bool(found.only_before)
        lines += [f"Only after: {', '.join(found.only_after)}"] * bool(found.only_after)
        if found.machine is not None:
            lines.append(f"The machine's own FP32 matrix product ran at {found.machine:.2f} of its speed before.")
        for line in (*lines, *found.notes):
            click.echo(line)
    if fail and slower:
        raise click.ClickException(f"{len(slower)} cases got slower by more than {least:g} %")


def _block(title: str, changes: "Sequence[Change]") -> str:
    from bert_bench.reports.text_table import format_ms

    lines = [
        f"  {each.engine:32} {each.case:20} {format_ms(each.before_ms):>8} → {format_ms(each.after_ms):>8} ms"
        f"  {each.ratio:.2f}×"
        for each in changes
    ]
    return "\n".join([f"{title}: {len(changes)}", *lines])
