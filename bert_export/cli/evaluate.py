"""`bert-export evaluate`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import bundle_argument, columns_option, inference_options, json_option, load_model
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import count_progress
from bert_export.cli.terminal import print_table

__all__ = ["evaluate"]


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export evaluate bundle dev.csv",
        "# A file with other column names, in FP32",
        "bert-export evaluate bundle dev.tsv --columns text=sentence,label=category \\",
        "    --precision fp32",
    ],
)
@bundle_argument
@click.argument("file", type=PATH)
@columns_option
@inference_options
@json_option
def evaluate(
    bundle: Path,
    file: Path,
    columns: dict[str, str] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure BUNDLE's task metric on a labelled FILE.

    Options of tasks, such as --top-k, default to the bundle's settings.
    """
    from bert_runtime.evaluation import evaluate as evaluate_model
    from bert_runtime.records import read_records

    model = load_model(bundle, **options)
    records = read_records(file, columns)
    with count_progress("evaluating", len(records)) as advance:
        metrics = evaluate_model(model, records, progress=advance)
    assert model.variant is not None
    report = {"precision": model.variant.precision, "examples": len(records), **metrics}
    if as_json:
        print_json(report)
    else:
        print_table(report.items())
