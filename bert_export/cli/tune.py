"""`bert-export tune`."""

from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import bundle_argument, check_columns_usage, columns_option, input_option, json_option
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import stage_progress
from bert_export.cli.terminal import print_table, print_text
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.bundle.schema import to_plain
from bert_runtime.plan import TUNING_NAME, Tuning
from bert_runtime.records import iter_records
from bert_runtime.timing import format_ms

__all__ = ["tune"]


measurement_option = option_group("Measurement")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export tune bundle",
        "# For texts of the lengths that will be served",
        "bert-export tune bundle --input messages.csv",
    ],
)
@bundle_argument
@input_option("--input", "input_file", type=PATH, help="File of typical inputs; their lengths matter.")
@columns_option
@measurement_option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Repetitions of every measurement."
)
@json_option
def tune(
    bundle: Path,
    input_file: Path | None,
    columns: dict[str, str] | None,
    rounds: int,
    as_json: bool,
) -> None:
    """Find the fastest settings for BUNDLE on this machine.

    Measures variants, threads and batch sizes, and stores the fastest in the bundle, for every later load on such a
    machine; of a cascade, in both of its bundles. Stop other work on the machine first.
    """
    check_columns_usage(columns, input=input_file)
    from bert_runtime import tune as tune_bundle
    from bert_runtime.cascade import is_cascade
    from bert_runtime.cascade.task import MODELS

    cascaded = is_cascade(bundle)
    tunings: dict[Path, Tuning] = {}
    for part in [bundle / name for name in MODELS] if cascaded else [bundle]:
        inputs = None
        if input_file is not None:
            task = Manifest.read(part).task
            inputs = (value for record in iter_records(input_file, columns) for value in task.inputs(record))
        with stage_progress() as progress:
            tunings[part] = tune_bundle(part, inputs=inputs, rounds=rounds, progress=progress)
    if as_json:
        found = {part.name: to_plain(tuning) for part, tuning in tunings.items()}
        print_json(found if cascaded else found[bundle.name])
        return
    for part, tuning in tunings.items():
        _print_measurements(tuning)
        print_text(f"chosen: {tuning.plan}")
        click.echo(f"wrote {part / TUNING_NAME}")
    click.echo("load and the commands follow it on this machine", err=True)


def _print_measurements(tuning: Tuning) -> None:
    """Print the latency of one input and the throughput of many as two tables."""
    one, many = tuning.measured["one_input_ms"], tuning.measured["sequences_per_second"]
    shapes = list(next(iter(one.values())))
    latencies = [
        ("ms of one input", *shapes),
        *((name, *map(format_ms, times.values())) for name, times in one.items()),
    ]
    throughputs = sorted(many.items(), key=lambda item: -item[1])
    sequences = tuning.measured["sequences"]
    heading = f"{sequences['number']} sequences at once, {sequences['mean_tokens']:g} tokens on average"
    print_table(latencies, has_header=True)
    click.echo()
    print_table([(heading, "per second"), *((name, f"{rate:.0f}") for name, rate in throughputs)], has_header=True)
