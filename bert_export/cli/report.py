"""`bert-export report`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import (
    bundle_argument,
    check_columns_usage,
    columns_option,
    drop_unset,
    engine_option,
    force_option,
    input_option,
    json_option,
    output_option,
    task_options,
    threads_option,
)
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import stage_progress

__all__ = ["report"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export report bundle -o report.html",
        "# With the task metric, changed predictions, confusion and calibration",
        "bert-export report bundle --evaluate dev.jsonl -o report.html",
    ],
)
@bundle_argument
@input_option("--evaluate", "evaluate_file", type=PATH, help="Labelled file to measure the quality of answers on.")
@columns_option
@threads_option
@engine_option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Repetitions of every latency."
)
@task_options
@output_option("-o", "--output", type=PATH, help="HTML file to write; required unless --json is given.")
@force_option
@json_option
def report(
    bundle: Path,
    evaluate_file: Path | None,
    columns: dict[str, str] | None,
    threads: int | None,
    rounds: int,
    output: Path | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a page on BUNDLE: contents, origin, fidelity, speed.

    One HTML file without scripts, which needs no network. Latencies are of this machine's CPU: stop other work first.
    Options of tasks, such as --top-k, default to the bundle's settings.
    """
    if output is None and not as_json:
        raise click.UsageError("give -o FILE for the page, or --json for its data")
    check_columns_usage(columns, evaluate=evaluate_file)
    from bert_export.report import measure_report

    if output is not None:
        from bert_export.report.output import check_output, write_page
        from bert_export.report.page import render_page  # needs an extra, which is missed before anything is measured

        check_output(output, force=force)
    with stage_progress() as progress:
        measured = measure_report(
            bundle, evaluate=evaluate_file, columns=columns, options=drop_unset(options), threads=threads,
            rounds=rounds, progress=progress,
        )  # fmt: skip
    if output is not None:
        write_page(output, render_page(measured))
    if as_json:
        from bert_runtime.bundle.schema import to_plain

        print_json(to_plain(measured))
    else:
        click.echo(f"wrote {output}")
