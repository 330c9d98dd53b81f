"""`bert-export tune`."""

from pathlib import Path

import click

from bert_export.cli.common import (
    PATH,
    bundle_argument,
    columns_option,
    json_option,
    print_json,
    progress_printer,
    table,
)
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.bundle.schema import to_plain
from bert_runtime.plan import TUNING_NAME, Tuning
from bert_runtime.records import iter_records

__all__ = ["tune"]


@click.command()
@bundle_argument
@click.option("--input", "input_file", type=PATH, help="File of inputs like those that will come; their lengths count.")
@columns_option
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Times everything is timed.")
@json_option
def tune(
    bundle: Path,
    input_file: Path | None,
    columns: dict[str, str] | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure how BUNDLE runs fastest on this machine, and keep that in it: variant, threads, batches.

    Whatever opens the bundle on such a machine then does the same. Let nothing else run meanwhile.
    """
    from bert_runtime import tune as tune_bundle

    inputs = None
    if input_file is not None:
        task = Manifest.read(bundle).task
        inputs = (each for record in iter_records(input_file, columns) for each in task.inputs(record))
    tuning = tune_bundle(bundle, inputs=inputs, rounds=rounds, progress=progress_printer())
    if as_json:
        print_json(to_plain(tuning))
        return
    click.echo(_summary(tuning))
    click.echo(f"chosen: {tuning.plan}")
    click.echo(f"wrote {bundle / TUNING_NAME}")


def _summary(tuning: Tuning) -> str:
    """What was measured: one input, then many."""
    one, many = tuning.measured["one_input_ms"], tuning.measured["sequences_per_second"]
    shapes = list(next(iter(one.values())))
    rows = [("ms of one input", *shapes), *((name, *times.values()) for name, times in one.items())]
    ways = sorted(many.items(), key=lambda each: -each[1])
    sequences = tuning.measured["sequences"]
    heading = f"{sequences['number']} sequences at once, {sequences['mean_tokens']:g} tokens in the mean"
    return table(rows) + "\n\n" + table([(heading, "per second"), *ways])
