"""Measure fine-tuning quality on BANKING77 vs. transformers' class in the same loop, then FP32 and INT8 of the export.

python -m bert_bench.experiments.banking77 --base CKPT --data DIR --output FILE

DIR holds `train.csv` and `test_odd_rows.csv` with the columns text and category. Both model classes are trained once,
by `bert_models`' training loop with the same settings and seed; the export is calibrated on the training file. Metrics
are those of `test_odd_rows.csv`.

Made bench/results/banking77.json, with MiniLM-L6 as the base.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.experiments.transformers_fine_tuning import train_transformers
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records
from bert_runtime.tasks import TextClassification

__all__ = ["main", "results_table"]

_COLUMNS = {"label": "category"}


def results_table(result: Path) -> str:
    """Return the accuracies in a result file as a Markdown table."""
    values = json.loads(result.read_text("utf-8"))
    metrics = {
        "bert-export, PyTorch": values["ours"]["best"],
        "transformers, PyTorch": values["transformers"]["best"],
        **{f"bert-export, {name.upper()} bundle": found for name, found in values["bundle"]["metrics"].items()},
    }
    rows = [[name, f"{found['accuracy']:.4f}", f"{found['macro_f1']:.4f}"] for name, found in metrics.items()]
    return markdown_table(["model", "accuracy", "macro F1"], rows)


@click.command(help=__doc__)
@path_option("--base", "Checkpoint folder to fine-tune from.")
@path_option("--data", "Folder with BANKING77's files.")
@path_option("--output", "Result file to write.")
@click.option("--epochs", type=int, default=5, show_default=True, help="Number of epochs.")
@click.option("--lr", type=float, default=3e-4, show_default=True, help="Peak learning rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of both trainings.")
@path_option("--keep", "Folder to keep checkpoint and bundle in.", required=False)
def main(base: Path, data: Path, output: Path, epochs: int, lr: float, seed: int, keep: Path | None) -> None:
    """Train both classes, export bert_models' checkpoint, write the result."""
    settings = TrainSettings(epochs=epochs, lr=lr, seed=seed)
    train, dev = data / "train.csv", data / "test_odd_rows.csv"
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        checkpoint, bundle = folder / "checkpoint", folder / "bundle"
        report = fine_tune(
            TextClassification.name, base, train, dev, checkpoint, settings,
            columns=_COLUMNS, force=True, progress=click.echo,
        )  # fmt: skip
        manifest = export(
            checkpoint, bundle, calibrate=train, evaluate=dev, columns=_COLUMNS, max_drop=0.5, force=True,
            progress=click.echo,
        )  # fmt: skip
        records = read_records(dev, _COLUMNS)
        metrics = {v.precision: evaluate(load(bundle, precision=v.precision), records) for v in manifest.variants}
        settings = replace(settings, precision=report["precision"])
        transformers = train_transformers(
            TextClassification.name, base, (train, dev), settings, Path(scratch) / "transformers", columns=_COLUMNS
        )
    kept = ("settings", "precision", "seconds_per_step", "seconds", "best", "epochs")
    result = {
        "what": "BANKING77, train.csv to test_odd_rows.csv, the same recipe and loop for both model classes",
        "ours": {key: report[key] for key in kept},
        "transformers": transformers,
        "bundle": {
            "metrics": metrics,
            "int8_drift": dict(manifest.variant("int8").drift),
            "default": manifest.default_precision,
            "reason": manifest.default_reason,
        },
    }
    write_result(output, result)
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
