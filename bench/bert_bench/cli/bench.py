"""`bert-export bench`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import bundle_argument, columns_option, output_option, threads_option
from bert_export.cli.output import print_next
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import stage_progress
from bert_export.cli.terminal import is_terminal, print_heading, print_table, print_text
from bert_runtime.bundle.atomic_files import output_problem
from bert_runtime.plan import tuned_plan
from bert_runtime.records import read_records

if TYPE_CHECKING:
    from bert_bench import Report

__all__ = ["bench", "print_report"]


comparison_option = option_group("Comparison")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export bench bundle --quick",
        "bert-export bench bundle --json result.json --plot result.svg",
    ],
)
@bundle_argument
@comparison_option(
    "--checkpoint",
    type=CHECKPOINT,
    show_default="the one that the bundle was made from",
    help="Folder or hub id (org/name@revision) of the checkpoint for the other engines.",
)
@comparison_option(
    "--texts", type=PATH, show_default="messages of mixed lengths", help="File of texts for the throughput workload."
)
@columns_option
@threads_option
@comparison_option("--quick", is_flag=True, help="Run fewer repetitions: faster, with more noise.")
@output_option("--json", "json_file", type=PATH, help="File for the whole report.")
@output_option("--plot", type=PATH, help="File for a chart of the report (PNG, SVG or PDF).")
def bench(
    bundle: Path,
    checkpoint: str | None,
    texts: Path | None,
    columns: dict[str, str] | None,
    threads: int | None,
    quick: bool,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Benchmark BUNDLE against PyTorch and ONNX Runtime.

    Measures the bundle's variants, PyTorch, and ONNX Runtime with a plain export, on this machine.
    """
    from bert_bench import Settings, bench_bundle, plot_report, require_plotting

    for path in (json_file, plot):  # checked before measuring, which takes minutes
        if path is not None and (problem := output_problem(path)):
            raise click.UsageError(problem)
    if plot is not None:
        require_plotting(plot)
    lines = None if texts is None else [record.text() for record in read_records(texts, columns)]
    settings = replace(Settings.quick() if quick else Settings(), threads=threads)
    with stage_progress() as progress:
        report = bench_bundle(bundle, checkpoint=checkpoint, texts=lines, settings=settings, progress=progress)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if plot is not None:
        plot_report(report, plot)
    print_report(report)
    if tuned_plan(bundle) is None:
        print_next("bert-export", "tune", bundle, why="this machine is not measured yet")


def print_report(report: "Report") -> None:
    """Print the report: with tables in a terminal, as text elsewhere."""
    from bert_bench.reports.text_table import report_blocks, report_table

    if not is_terminal(sys.stdout):
        click.echo(report_table(report))
        return
    for text, rows in report_blocks(report):
        if rows:
            print_heading(text)
            print_table(rows, has_header=True, align_right=True)
        else:
            print_text(text)
        click.echo()
