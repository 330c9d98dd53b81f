"""`bert-export cascade`."""

from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, force_option, input_option, json_option
from bert_export.cli.output import print_json, print_next
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import progress_printer
from bert_export.cli.terminal import print_text

__all__ = ["cascade"]

_goal_option = option_group("Goal")


@click.command(
    cls=ExampleCommand,
    short_help="Let a small model answer what it is sure of, and a large one the rest.",
    examples=[
        "bert-export cascade both --small small-bundle --large intents-bundle \\",
        "    --dev dev.jsonl --max-drop 0.5",
    ],
)
@click.argument("output", type=PATH)
@input_option("--small", type=PATH, required=True, help="Bundle of the small model.")
@input_option("--large", type=PATH, required=True, help="Bundle of the large model, for the same labels.")
@input_option(
    "--dev",
    "dev_file",
    type=PATH,
    required=True,
    help="Labelled file that neither model was trained on; its rows choose the threshold, and judge it in folds.",
)
@columns_option
@_goal_option(
    "--max-drop",
    type=click.FloatRange(0, 100),
    metavar="PCT",
    required=True,
    help="Largest loss of the task metric, in percent of the large model's.",
)
@_goal_option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the folds.")
@force_option
@json_option
def cascade(
    output: Path,
    small: Path,
    large: Path,
    dev_file: Path,
    columns: dict[str, str] | None,
    max_drop: float,
    seed: int,
    force: bool,
    as_json: bool,
) -> None:
    """Join two classifiers to the bundle OUTPUT: the small one answers what it is sure of, the large one the rest.

    Results say which model answered. Probabilities are calibrated first. The loss is that of rows which had no part
    in choosing the threshold that judges them; where it exceeds the limit, the measurements are printed and nothing is
    written.
    """
    from bert_export.cascade import build_cascade
    from bert_export.cli.cascade_summary import print_measurements
    from bert_runtime.records import read_records

    records = read_records(dev_file, columns)
    found = build_cascade(
        small, large, output, records, max_drop=max_drop, force=force, seed=seed, progress=progress_printer()
    )
    if as_json:
        print_json(found.to_dict())
    else:
        print_measurements(found.manifest)
        print_text(f"\n{found.reason}")
    if not found.passed:
        raise click.ClickException(f"the limit cannot be reached, so nothing was written to {output}: {found.reason}")
    print_next("bert-export", "predict", output, "TEXT")
