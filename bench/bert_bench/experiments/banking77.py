"""Fine-tuning quality on BANKING77: our model beside transformers' in one recipe and one loop, then INT8.

python -m bert_bench.experiments.banking77 --base CKPT --data DIR --output FILE

DIR holds `train.csv` and `test_odd_rows.csv` with the columns text and category.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import click

from bert_bench.experiments.harness import write_result
from bert_bench.experiments.transformers_fine_tuning import train_transformers
from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records
from bert_runtime.tasks import TextClassification

__all__ = ["main"]

COLUMNS = {"label": "category"}


@click.command(help=__doc__)
@click.option("--base", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--epochs", type=int, default=5, show_default=True)
@click.option("--lr", type=float, default=3e-4, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep checkpoint and bundle in this folder.")
def main(base: Path, data: Path, output: Path, epochs: int, lr: float, seed: int, keep: Path | None) -> None:
    """Trains both, exports ours, writes the result."""
    settings = TrainSettings(epochs=epochs, lr=lr, seed=seed)
    files = data / "train.csv", data / "test_odd_rows.csv"
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        ours = fine_tune(
            "text-classification", base, *files, folder / "checkpoint", settings,
            columns=COLUMNS, force=True, progress=click.echo,
        )  # fmt: skip
        bundle = folder / "bundle"
        manifest = export(
            folder / "checkpoint",
            bundle,
            calibrate=files[0],
            evaluate=files[1],
            columns=COLUMNS,
            max_drop=0.5,
            force=True,
            progress=click.echo,
        )
        records = read_records(files[1], COLUMNS)
        metrics = {v.precision: evaluate(load(bundle, precision=v.precision), records) for v in manifest.variants}
        settings = replace(settings, precision=ours["precision"])
        theirs = train_transformers(
            TextClassification.name, base, files, settings, Path(scratch) / "transformers", columns=COLUMNS
        )
    result = {
        "what": "BANKING77, train.csv to test_odd_rows.csv, the same recipe and loop for both model classes",
        "ours": {key: ours[key] for key in ("settings", "precision", "seconds_per_step", "seconds", "best", "epochs")},
        "transformers": theirs,
        "bundle": {
            "metrics": metrics,
            "int8_drift": dict(manifest.variant("int8").drift),
            "default": manifest.default_precision,
            "reason": manifest.default_reason,
        },
    }
    write_result(output, result)
    click.echo(f"wrote {output}")


if __name__ == "__main__":
    main()
