"""Fine-tune a checkpoint on a task, and measure `bert-export compress` on it: how much faster it gets, what it loses.

python -m bert_bench.experiments.compression --task NAME --base CKPT --data DIR \
    (--speedup X | --max-drop PCT) --budget 30m --work DIR --output DIR

Rows and recipes are those of `compression_data`. Checkpoint and search are left in WORK/NAME; the same command goes on
there, and trains nothing again. The result, OUTPUT/NAME.json, has every model that was measured, and the gate's verdict
with its 95 % interval. The budget is the search's alone. `--only-fine-tune` ends with the checkpoint. The recipes are
for MiniLM-L6: of another base, give `--base-name`, which becomes a part of folder and result, and the rate. With
`--unlabelled`, the uncompressed model labels the training rows of another data set, too, as it would label a user's.
"""

import json
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.compression_by_hand import measure_by_hand
from bert_bench.experiments.compression_data import (
    TITLES,
    UNLABELLED_TITLES,
    fine_tuned,
    task_files,
    unlabelled_file,
)
from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.cli.param_types import DurationType
from bert_export.compression import CompressionSettings, Goal, compress
from bert_export.compression.goal import PRUNINGS
from bert_models.training import REPORT_NAME

__all__ = ["main", "results_table"]


def results_table(results: Path) -> str:
    """Return the gate's verdicts in a folder of results as Markdown: a row for each task."""
    header = [
        "",
        "rows",
        "uncompressed INT8",
        "compressed",
        "loss",
        "95 % interval",
        "ms a text",
        "speed",
        "what is left",
        "minutes",
        "first layers",
        "spaced layers, distilled",
    ]
    paths = sorted(results.glob("*.json"), key=lambda path: path.stem)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return markdown_table(header, [_row(result) for result in found])


def _row(result: dict[str, Any]) -> list[str]:
    record = result["compression"]
    gate, speed = record["gate"], record["time"]
    low, high = gate["drop_percent_interval"]
    return [
        f"{result['title']}, {gate['metric']}", f"{gate['rows']:,}",
        f"{gate['uncompressed']:.4f}", f"{gate['compressed']:.4f}",
        f"{gate['drop_percent']:.2f} %", f"{low:.2f} to {high:.2f} %",
        f"{speed['uncompressed_latency_ms']:.3f} → {speed['latency_ms']:.3f}", f"{speed['speedup']:.2f}×",
        f"{len(record['layers_kept'])} layers, width {record['intermediate_size']}{_pruned(record)}",
        f"{record['seconds'] / 60:.0f}", *(_by_hand(result, way) for way in ("first_layers", "distilbert")),
    ]  # fmt: skip


def _by_hand(result: dict[str, Any], way: str) -> str:
    found = result.get("by_hand", {}).get(way)
    return f"{found['gate']['drop_percent']:.2f} %, {found['time']['speedup']:.2f}×" if found else ""


def _pruned(record: dict[str, Any]) -> str:
    return f", tokens {record['token_pruning']}" if record.get("token_pruning") else ""


@click.command()
@click.option("--task", "name", type=click.Choice(list(TITLES)), required=True)
@path_option("--base", "Checkpoint to fine-tune.")
@click.option("--base-name", help="Name of a base other than MiniLM-L6, such as MPNet.")
@click.option("--fine-tune-lr", type=float, help="Peak learning rate of the uncompressed model.")
@click.option("--fine-tune-epochs", type=int, help="Its epochs.")
@path_option("--data", "Folder with the data sets' files.")
@click.option(
    "--unlabelled",
    "unlabelled_name",
    type=click.Choice(list(UNLABELLED_TITLES)),
    help="Data set whose training rows are further inputs.",
)
@click.option("--speedup", type=float)
@click.option("--max-drop", type=float)
@click.option("--lr", type=float, default=CompressionSettings.lr, show_default=True)
@click.option("--hidden-weight", type=float, default=CompressionSettings.hidden_weight, show_default=True)
@click.option("--copies", type=int, show_default="see `bert_export.compression.augmentation`")
@click.option("--prune-tokens", type=click.Choice(PRUNINGS), default="auto", show_default=True)
@click.option("--batch-size", type=int, default=CompressionSettings.batch_size, show_default=True)
@click.option("--budget", type=DurationType(), default="60m", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the training and of the search.")
@click.option("--by-hand", is_flag=True, help="Also measure what needs no search, see `compression_by_hand`.")
@click.option("--only-fine-tune", is_flag=True, help="Compress nothing.")
@path_option("--work", "Folder for checkpoints, bundles and searches.")
@path_option("--output", "Folder for results.")
def main(
    name: str,
    base: Path,
    base_name: str | None,
    fine_tune_lr: float | None,
    fine_tune_epochs: int | None,
    data: Path,
    unlabelled_name: str | None,
    speedup: float | None,
    max_drop: float | None,
    lr: float,
    hidden_weight: float,
    copies: int | None,
    prune_tokens: str,
    batch_size: int,
    budget: float,
    seed: int,
    by_hand: bool,
    only_fine_tune: bool,
    work: Path,
    output: Path,
) -> None:
    """Compress a fine-tuned checkpoint and write what was measured."""
    folder = work / "-".join([name, *([base_name.lower()] if base_name else []), *([f"seed-{seed}"] if seed else [])])
    files = task_files(name, data, folder)
    given = {"lr": fine_tune_lr, "epochs": fine_tune_epochs, "seed": seed}
    changes = {key: value for key, value in given.items() if value is not None}
    checkpoint = fine_tuned(name, base, files, folder, **changes)
    if only_fine_tune:
        return
    settings = CompressionSettings(
        budget_s=budget, lr=lr, hidden_weight=hidden_weight, copies=copies, prune_tokens=prune_tokens,
        batch_size=batch_size, seed=seed,
    )  # fmt: skip
    found: Any = compress(
        checkpoint, folder / "small", files.train, files.dev, Goal(speedup, max_drop),
        test=files.test, settings=settings, progress=click.echo,
        unlabelled=unlabelled_name and unlabelled_file(unlabelled_name, data, folder),
    )  # fmt: skip
    values = found.to_dict()
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    training = {key: report[key] for key in ("settings", "seconds", "examples", "best")}
    kept = {key: values[key] for key in ("passed", "reason", "compression", "measured")}
    if unlabelled_name:
        kept["unlabelled"] = UNLABELLED_TITLES[unlabelled_name]
    if by_hand:
        kept["by_hand"] = measure_by_hand(name, base, files, folder, len(kept["compression"]["layers_kept"]), **changes)
    title = f"{TITLES[name]}{f' from {base_name}' if base_name else ''}{f', seed {seed}' if seed else ''}"
    result = {"title": title, "budget_s": budget, "training": training, **kept}
    write_result(output / f"{folder.name}.json", result)
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
