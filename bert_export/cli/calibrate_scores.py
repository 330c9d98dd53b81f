"""`bert-export calibrate-scores`."""

from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import bundle_argument, columns_option, json_option
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import count_progress
from bert_export.cli.terminal import print_table
from bert_runtime.bundle.manifest import PRECISIONS
from bert_runtime.bundle.schema import to_plain
from bert_runtime.plan import TUNING_NAME
from bert_runtime.records import read_records

__all__ = ["calibrate_scores"]

_calibration_option = option_group("Calibration")


@click.command(
    cls=ExampleCommand,
    short_help="Make BUNDLE's probabilities mean what they say.",
    examples=[
        "bert-export calibrate-scores bundle dev.jsonl",
        "# A scale and a bias for each label, where there are hundreds of rows for each",
        "bert-export calibrate-scores bundle dev.jsonl --method vector",
    ],
)
@bundle_argument
@click.argument("file", type=PATH)
@columns_option
@_calibration_option(
    "--method",
    type=click.Choice(["temperature", "vector"]),
    default="temperature",
    show_default=True,
    help="temperature scaling: one scale for all logits, which changes no label; vector scaling: a scale and a bias "
    "for each label.",
)
@_calibration_option(
    "--precision",
    type=click.Choice(["auto", *PRECISIONS]),
    default="auto",
    show_default=True,
    help="Variant that the rows run through; auto: the one of this machine.",
)
@json_option
def calibrate_scores(
    bundle: Path, file: Path, columns: dict[str, str] | None, method: str, precision: str, as_json: bool
) -> None:
    """Make the probabilities of BUNDLE mean what they say, on a labelled FILE.

    Of the texts that get a label with 0.8, four fifths should have it. FILE holds rows that the model was not trained
    on. The calibration is written into the bundle's settings and holds for all its variants.
    """
    from bert_runtime.bundle_calibration import calibrate_scores as calibrate

    records = read_records(file, columns)
    with count_progress("running", len(records)) as advance:
        found = calibrate(bundle, records, method=method, precision=precision, progress=advance)
    if as_json:
        print_json(to_plain(found))
        return
    rows = [
        (name.replace("_", " "), f"{before:.4f}", f"{found.after[name]:.4f}") for name, before in found.before.items()
    ]
    print_table([(f"{found.examples} rows, {found.precision}", "before", "after (5 folds)"), *rows], has_header=True)
    if len(found.logit_scales) == 1:
        click.echo(f"logits are multiplied by {found.logit_scales[0]:.4f}")
    if (bundle / TUNING_NAME).exists():
        click.echo(f"{TUNING_NAME} is of the bundle as it was; run bert-export tune again", err=True)
