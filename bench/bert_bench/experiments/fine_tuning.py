"""Measure task quality end to end: fine-tune a checkpoint on each data set, export it, evaluate FP32 and INT8.

python -m bert_bench.experiments.fine_tuning --base CKPT --data DIR --work DIR --output DIR [--only NAME]...

Data sets and recipes are those of `data_sets.DATA_SETS`. Each bundle is calibrated on the training file. The dev file
is evaluated in PyTorch during training, and in FP32 and INT8 after the export. Writes one JSON file per data set into
the output folder and prints them as a table. A checkpoint that is in the work folder already is not trained again.

Made bench/results/fine-tunes, with MiniLM-L6 as the base.
"""

import json
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.data_sets import DATA_SETS, DataSet, convert_data_set
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models.training import REPORT_NAME, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records

__all__ = ["fine_tune_and_export", "main", "results_table"]

_METRIC_NAMES = {"f1": "F1", "exact_match": "exact match", "spearman": "Spearman", "micro_f1": "micro F1"}


def results_table(results: Path) -> str:
    """Return the results in a folder as a Markdown table, one row per data set, in the order of `DATA_SETS`."""
    header = ["data set", "task", "training", "metric", "PyTorch", "FP32", "INT8", "INT8 vs. FP32"]
    paths = {name: results / f"{name}.json" for name in DATA_SETS}
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
    return markdown_table(header, [_table_row(name, result) for name, result in found.items()], num_names=4)


def _table_row(name: str, result: dict[str, Any]) -> list[str]:
    training, metrics = result["training"], result["metrics"]
    epochs = training["settings"]["epochs"]
    recipe = f"{training['examples']['train']:,} examples, {epochs} epochs, lr {training['settings']['lr']:g}"
    keys = [result["metric"]]
    if result["metric"] in ("micro_f1", "f1"):
        keys += [key for key in ("macro_f1", "exact_match") if key in metrics["fp32"]]
    values = [
        " / ".join(f"{variant[key]:.3f}" for key in keys)
        for variant in (training["best"], metrics["fp32"], metrics["int8"])
    ]
    names = " / ".join(_METRIC_NAMES.get(key, key.replace("_", " ").replace("f1", "F1")) for key in keys)
    change = f"{result['int8_relative_change']:+.2%}"
    return [name, f"`{result['task']}`", recipe, names, *values, change]


def fine_tune_and_export(data_set: DataSet, base: Path, data: Path, folder: Path) -> dict[str, Any]:
    """Fine-tune on a data set, export, and evaluate FP32 and INT8 on its dev file.

    Args:
        data_set: files and recipe.
        base: checkpoint to start from.
        data: folder with the data sets' files.
        folder: where converted files, checkpoint and bundle are written; a checkpoint there is not trained again.

    Returns:
        Task, metric, training report, metrics by precision and drift of INT8.

    """
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = convert_data_set(data_set, data, folder)
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    if not (checkpoint / REPORT_NAME).is_file():
        fine_tune(
            data_set.task, base, train, dev, checkpoint, data_set.settings,
            task_settings=data_set.task_settings, force=True, progress=click.echo,
        )  # fmt: skip
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    manifest = export(checkpoint, bundle, calibrate=train, evaluate=dev, force=True, progress=click.echo)
    records = read_records(dev)
    metrics = {v.precision: evaluate(load(bundle, precision=v.precision), records) for v in manifest.variants}
    fp32, int8 = (metrics[precision][report["metric"]] for precision in ("fp32", "int8"))
    return {
        "task": report["task"]["name"],
        "metric": report["metric"],
        "training": {key: report[key] for key in ("settings", "precision", "seconds", "examples", "best", "epochs")},
        "metrics": metrics,
        "int8_relative_change": (int8 - fp32) / fp32,
        "int8_drift": dict(manifest.variant("int8").drift),
        "default": manifest.default_precision,
        "reason": manifest.default_reason,
    }


def _run(name: str, base: Path, data: Path, work: Path, output: Path) -> None:
    """Fine-tune, export and evaluate on one data set; write its result file."""
    data_set = DATA_SETS[name]
    if data_set.base is not None:
        base = work / data_set.base / "checkpoint"
    result = fine_tune_and_export(data_set, base, data, work / name)
    what = f"{name}: fine-tuned on {data_set.train}, evaluated on {data_set.dev}"
    write_result(output / f"{name}.json", {"what": what, **result})
    fp32, int8 = (result["metrics"][precision][result["metric"]] for precision in ("fp32", "int8"))
    click.echo(f"{name}: {result['metric']} {fp32:.4f} in FP32, {int8:.4f} in INT8")


@click.command(help=__doc__)
@path_option("--base", "Checkpoint folder to fine-tune from.")
@path_option("--data", "Folder with the data sets' files.")
@path_option("--work", "Folder for converted files, checkpoints and bundles.")
@path_option("--output", "Folder for the result files.")
@click.option("--only", multiple=True, type=click.Choice(list(DATA_SETS)), help="Data set to run. Default: all.")
def main(base: Path, data: Path, work: Path, output: Path, only: tuple[str, ...]) -> None:
    """Run the data sets one after another and print the table."""
    output.mkdir(parents=True, exist_ok=True)
    for name in only or DATA_SETS:
        _run(name, base, data, work, output)
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
