"""Fine-tuning quality on BANKING77: our model beside transformers' in one recipe and one loop, then INT8.

python -m bert_bench.experiments.banking77 --base CKPT --data DIR --output FILE

DIR holds `train.csv` and `test_odd_rows.csv` with the columns text and category.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import lightning.pytorch as pl
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from bert_bench.experiments.common import write_result
from bert_export.export import export
from bert_models import open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.data import Examples
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision
from bert_models.training.task_of_data import task_of_data
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records
from bert_runtime.tasks import TextClassification

__all__ = ["main"]

COLUMNS = {"label": "category"}


class _Transformers(nn.Module):
    """transformers' classifier with the signature of our `TaskModel`."""

    def __init__(self, base: Path, task: Any, config: Any) -> None:
        super().__init__()
        self.task = task
        self.config = config
        self.model = BertForSequenceClassification.from_pretrained(base, num_labels=len(task.labels))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).logits
        return logits


def _train_transformers(base: Path, files: tuple[Path, Path], settings: TrainSettings, state: Path) -> dict[str, Any]:
    """transformers' model class in our loop: best epoch and history."""
    source = open_checkpoint(base)
    train, dev = (read_records(file, COLUMNS) for file in files)
    task = task_of_data(TextClassification.name, source, train, dev, {})
    pl.seed_everything(settings.seed, verbose=False)
    tokenizer = source.text_tokenizer(settings.max_tokens)
    train_set, dev_set = (Examples(task, [task.example(record) for record in part], tokenizer) for part in (train, dev))
    module = FineTuning(_Transformers(base, task, source.config), dev_set, settings, settings.precision)  # type: ignore[arg-type] # has what of TaskModel is used
    best = fit(module, train_set, dev_set, settings, ChosenPrecision(settings.precision, {}), state, resume=False)
    return {"best": best, "epochs": module.history}


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
        theirs = _train_transformers(base, files, settings, Path(scratch) / "transformers")
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
