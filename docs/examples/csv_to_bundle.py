"""Train an intent classifier on a CSV file, and export it to a bundle that is checked and ready to serve.

Install:  the extras train and export of bert-export
Run:      python csv_to_bundle.py all-MiniLM-L6-v2 train.csv intents-bundle --dev dev.csv
          python csv_to_bundle.py all-MiniLM-L6-v2 tickets.csv bundle --columns text=message,label=topic

Without --dev, a tenth of the rows is held out to choose the best epoch, and INT8 is judged on texts of the training
file. The checkpoint is kept beside the bundle; transformers loads it. A second run replaces both.
"""

import argparse
from pathlib import Path

from bert_export import export
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import Manifest


def train_and_export(
    base: str, train: Path, dev: Path | None, bundle: Path, columns: dict[str, str], epochs: int = 5
) -> tuple[dict[str, float], Manifest]:
    """Return the dev metrics of the best epoch, and the manifest of the bundle."""
    checkpoint = bundle.with_name(f"{bundle.name}-checkpoint")
    settings = TrainSettings(epochs=epochs, lr=3e-4, patience=2)
    report = fine_tune(
        "text-classification", base, train, dev, checkpoint, settings, columns=columns, force=True, progress=print
    )
    manifest = export(checkpoint, bundle, calibrate=train, evaluate=dev, columns=columns, force=True, progress=print)
    return report["best"], manifest


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier on a CSV file and export it.")
    parser.add_argument("base", help="checkpoint to start from: a folder or a hub id")
    parser.add_argument("train", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--columns", default="", help="names of the columns, such as text=message,label=topic")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    columns = dict(pair.split("=", 1) for pair in arguments.columns.split(",") if pair)
    best, manifest = train_and_export(
        arguments.base, arguments.train, arguments.dev, arguments.bundle, columns, arguments.epochs
    )
    print(f"accuracy {best['accuracy']:.3f}; serves {manifest.default_precision}: {manifest.default_reason}")


if __name__ == "__main__":
    main()
