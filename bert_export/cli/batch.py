"""`bert-export batch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import (
    bundle_argument,
    device_option,
    drop_unset,
    engine_option,
    input_option,
    json_option,
    output_option,
    task_options,
    threads_option,
    vector_options,
)
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import count_progress
from bert_runtime.bundle.manifest import PRECISIONS
from bert_serve.tables import batch_function

if TYPE_CHECKING:
    from bert_serve.bulk.run import Engine, Summary

__all__ = ["batch"]

ray_option = option_group("Ray")


@click.command(
    cls=ExampleCommand,
    short_help="Answer the texts of files, into Parquet files.",
    examples=[
        "bert-export batch bundle --input 'texts/*.parquet' --output answers",
        "bert-export batch bundle --input reviews.csv --column review --output answers",
        "# On a Ray cluster, 16 replicas of two cores each:",
        "bert-export batch bundle --input 'texts/*.parquet' --output answers \\\n"
        "    --engine ray --address auto --replicas 16 --threads 2",
    ],
)
@bundle_argument
@input_option(
    "--input",
    "patterns",
    required=True,
    multiple=True,
    metavar="PATTERN",
    help="Files of texts: Parquet, or JSONL, CSV, TSV or TXT. A path with *, ?, ** or a folder; may be repeated.",
)
@input_option("--column", show_default="text", help="Column of texts.")
@input_option("--pair-column", help="Column of the second texts of pairs.")
@input_option("--question-column", show_default="question", help="question-answering: column of questions.")
@input_option("--context-column", show_default="context", help="question-answering: column of contexts.")
@output_option("--output", required=True, type=PATH, help="Folder for the answers, as Parquet files.")
@output_option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    show_default="all",
    help="Column of the input that the answers have, too; may be repeated.",
)
@output_option("--prefix", default="", help="Start of the names of the answers' columns.")
@output_option(
    "--on-error",
    type=click.Choice(["return", "raise"]),
    default="return",
    show_default=True,
    help="For a row that cannot be processed: return leaves its answers empty and writes the reason into the column "
    "error, raise writes no answers of its part.",
)
@output_option(
    "--part-rows",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Rows per file of answers, at most: what is done again after a crash.",
)
@output_option("--force", is_flag=True, help="Remove the answers of an earlier run, and start over.")
@engine_option(
    "--precision",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", *PRECISIONS]),
    help="Variant to run, as of predict.",
)
@device_option
@threads_option
@engine_option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to run: local is this process, ray a cluster.",
)
@ray_option("--address", help="Address of the cluster, or auto. Without it, Ray starts on this machine alone.")
@ray_option(
    "--replicas",
    type=click.IntRange(min=1),
    show_default="as many as the cluster has cores for",
    help="Parts that are answered at the same time, on --threads cores each (default 1).",
)
@task_options
@vector_options
@json_option
def batch(
    bundle: Path,
    patterns: tuple[str, ...],
    column: str | None,
    pair_column: str | None,
    question_column: str | None,
    context_column: str | None,
    output: Path,
    keep: tuple[str, ...],
    prefix: str,
    on_error: Any,
    part_rows: int,
    force: bool,
    precision: str,
    device: str,
    threads: int | None,
    engine: str,
    address: str | None,
    replicas: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer the texts of files, and write Parquet files of answers.

    Each file of answers appears when it is complete. Run the same command again to do what is missing: after a crash,
    or when files were added. Rows keep their order.
    """
    if engine == "local" and (address is not None or replicas is not None):
        raise click.UsageError("--address and --replicas are for --engine ray")
    if engine == "ray" and device not in ("auto", "cpu"):
        raise click.UsageError("--engine ray runs on the CPU; expected --device cpu or auto")
    function = batch_function(
        bundle,
        column=column,
        pair_column=pair_column,
        question_column=question_column,
        context_column=context_column,
        keep=keep or None,
        prefix=prefix,
        on_error=on_error,
        precision=precision,
        device="cpu" if engine == "ray" else device,
        threads=threads,
        **drop_unset(options),
    )
    from bert_serve.bulk.run import prepare_run

    with (
        prepare_run(patterns, output, function, part_rows=part_rows, force=force) as run,
        count_progress(f"answering {len(run.missing)} of {len(run.parts)} parts", run.missing_rows) as advance,
    ):
        summary = run.execute(_engine(engine, address, replicas, threads), advance)
    if as_json:
        print_json(summary.to_dict())
    else:
        click.echo(_describe(summary, output))


def _engine(engine: str, address: str | None, replicas: int | None, threads: int | None) -> "Engine":
    if engine == "local":
        from bert_serve.bulk.local_engine import local_engine

        return local_engine
    from bert_serve.bulk.ray_engine import RayEngine

    return RayEngine(address=address, replicas=replicas, cores_per_replica=threads or 1)


def _describe(summary: "Summary", output: Path) -> str:
    """Return a summary as one or two lines."""
    done = summary.parts - summary.parts_done_before
    if not done:
        return f"{output}: all {summary.parts} files of answers are there already"
    before = f", {summary.parts_done_before} were there already" if summary.parts_done_before else ""
    lines = [f"{output}: {summary.rows:,} rows in {done} files of answers, in {summary.seconds:.1f} s{before}"]
    if summary.rows_without_answer:
        lines.append(f"{summary.rows_without_answer:,} rows could not be processed; see the column error")
    return "\n".join(lines)
