"""Measure fine-tuning quality of bert_models' classes vs. transformers' classes: same checkpoint, data, recipe, seeds.

python -m bert_bench.experiments.fine_tuning_vs_transformers --base CKPT --data DIR --work DIR --output DIR \
    [--only NAME]... [--seed N]... [--epochs N] [--lr LR]

Both model classes are trained by `bert_models`' training loop with the recipes of `data_sets.DATA_SETS`. The metrics
of the best epochs are compared, as means over seeds. Writes one JSON file per data set, class and seed into the output
folder and prints them as a table. A run whose file is there is not repeated.

Made bench/results/fine-tuning-peers, with MiniLM-L6 as the base, and bench/results/fine-tuning-small, with the
checkpoints that `small_encoders` pre-trains.
"""

import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click

from bert_bench.experiments.data_sets import DATA_SETS, convert_data_set
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.experiments.transformers_fine_tuning import train_transformers
from bert_bench.reports.markdown_table import markdown_table
from bert_models.training import fine_tune

__all__ = ["NAMES", "main", "results_table"]

NAMES = ("sst2", "stsb", "banking77", "wnut17")
"""The data sets of `DATA_SETS` that are compared."""

_SIDES = ("ours", "transformers")
"""The two model classes, by their names in result files: `ours` is bert_models."""


def results_table(results: Path) -> str:
    """Return the results in a folder as a Markdown table, one row per data set.

    Shows the metric of the best epoch, over the seeds for which both classes have a result. Folders in it, each
    named after a base checkpoint, have rows of their own.
    """
    rows = []
    bases = sorted(path for path in results.iterdir() if path.is_dir())
    for folder, name in product([results, *bases], NAMES):
        runs = {side: _read_runs(folder, name, side) for side in _SIDES}
        seeds = sorted(runs["ours"].keys() & runs["transformers"].keys())
        if not seeds:
            continue
        title = name if folder == results else f"{folder.name}, {name}"
        metric = runs["ours"][seeds[0]]["metric"]
        values = {side: [runs[side][seed]["best"][metric] for seed in seeds] for side in _SIDES}
        columns = [_mean_and_deviation(values[side]) for side in _SIDES]
        difference = mean(values["ours"]) - mean(values["transformers"])
        rows.append([title, metric, f"{len(seeds)}", *columns, f"{difference:+.4f}"])
    header = ["data set", "metric", "seeds", "bert-export", "transformers", "difference of means"]
    return markdown_table(header, rows, num_names=2)


def _read_runs(results: Path, name: str, side: str) -> dict[int, dict[str, Any]]:
    """Return the results of one data set and one class by seed."""
    runs = (json.loads(path.read_text("utf-8")) for path in results.glob(f"{name}-{side}-*.json"))
    return {run["settings"]["seed"]: run for run in runs}


def _mean_and_deviation(values: list[float]) -> str:
    """Format the mean and the standard deviation, or all values if there are at most two."""
    if len(values) < 3:
        return ", ".join(f"{value:.4f}" for value in values)
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def _train(name: str, side: str, base: Path, files: tuple[Path, Path], changes: dict[str, Any]) -> dict[str, Any]:
    """Train once; return the training report, with metric, best epoch, all epochs and settings."""
    data_set = DATA_SETS[name]
    settings = replace(data_set.settings, **changes)
    options: dict[str, Any] = {"task_settings": data_set.task_settings}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if side == "ours":
            return fine_tune(data_set.task, base, *files, folder, settings, **options)
        return train_transformers(data_set.task, base, files, settings, folder, **options)


def _run(name: str, side: str, base: Path, data: Path, work: Path, output: Path, changes: dict[str, Any]) -> None:
    """Train once and write the result file, unless it is there."""
    run = f"{side}-{changes['seed']}"
    path, folder = output / f"{name}-{run}.json", work / name / run
    if path.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    data_set = DATA_SETS[name]
    files = convert_data_set(data_set, data, folder)
    started = time.monotonic()
    report = _train(name, side, base, files, changes)
    seconds = round(time.monotonic() - started, 1)
    what = f"{name}: {side}, fine-tuned on {data_set.train}, measured on {data_set.dev}"
    kept = {key: report[key] for key in ("metric", "best", "epochs", "settings")}
    write_result(path, {"what": what, **kept, "seconds": seconds})
    click.echo(f"{name} {run}: {report['metric']} {report['best'][report['metric']]:.4f} after {seconds:.0f} s")


@click.command(help=__doc__)
@path_option("--base", "Checkpoint folder to fine-tune from.")
@path_option("--data", "Folder with the data sets' files.")
@path_option("--work", "Folder for converted files.")
@path_option("--output", "Folder for the result files.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Data set to run. Default: all.")
@click.option(
    "--seed", "seeds", multiple=True, type=int, default=(0, 1), show_default=True, help="Seeds to train with."
)
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16"]), default="bf16", show_default=True, help="To train in."
)
@click.option("--epochs", type=int, help="Number of epochs. Default: the recipe's.")
@click.option("--lr", type=float, help="Peak learning rate. Default: the recipe's.")
@click.option(
    "--sort-by-length", is_flag=True, help="Train on batches of texts of similar length. Default: the recipe's."
)
def main(
    base: Path,
    data: Path,
    work: Path,
    output: Path,
    only: tuple[str, ...],
    seeds: tuple[int, ...],
    precision: str,
    epochs: int | None,
    lr: float | None,
    sort_by_length: bool,
) -> None:
    """Make the runs one after another and print the table."""
    output.mkdir(parents=True, exist_ok=True)
    given = {"epochs": epochs, "lr": lr, "sort_by_length": sort_by_length or None}
    changes = {"precision": precision, **{key: value for key, value in given.items() if value is not None}}
    for seed, name, side in product(seeds, only or NAMES, _SIDES):
        _run(name, side, base, data, work, output, {**changes, "seed": seed})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
