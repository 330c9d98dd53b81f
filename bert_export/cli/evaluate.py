"""`bert-export evaluate`."""

import sys
from pathlib import Path
from typing import Any

import click

from bert_export.cli.common import (
    PATH,
    bundle_argument,
    columns_option,
    device_option,
    given,
    json_option,
    precision_option,
    print_json,
    table,
    task_options,
    threads_option,
)

__all__ = ["evaluate"]


@click.command()
@bundle_argument
@click.argument("file", type=PATH)
@columns_option
@precision_option
@device_option
@threads_option
@task_options
@json_option
def evaluate(
    bundle: Path,
    file: Path,
    columns: dict[str, str] | None,
    precision: str,
    device: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure BUNDLE's task metric on a labelled FILE."""
    from bert_runtime import load
    from bert_runtime.evaluation import evaluate as evaluate_model
    from bert_runtime.records import read_records

    model = load(bundle, precision=precision, device=device, threads=threads).with_options(**given(options))
    records = read_records(file, columns)
    with click.progressbar(length=len(records), label="evaluating", file=sys.stderr) as bar:
        metrics = evaluate_model(model, records, progress=bar.update)
    assert model.variant is not None
    report = {"precision": model.variant.precision, "examples": len(records), **metrics}
    if as_json:
        print_json(report)
    else:
        click.echo(table(report.items()))
