"""Measure `bert-export compress` on a fine-tuned checkpoint: how much faster it gets, and what it loses.

python -m bert_bench.experiments.compression --title NAME --checkpoint CKPT --train FILE --dev FILE \
    (--speedup X | --max-drop PCT) --budget 30m --work DIR --output FILE

The search leaves its folder in WORK; the same command goes on there, and trains nothing again. The result has every
model that was measured, and the gate's verdict with its 95 % interval.
"""

import json
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.cli.param_types import ColumnsType, DurationType
from bert_export.compression import CompressionSettings, Goal, compress

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
    ]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
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
        f"{record['seconds'] / 60:.0f}",
    ]  # fmt: skip


def _pruned(record: dict[str, Any]) -> str:
    return f", tokens {record['token_pruning']}" if record.get("token_pruning") else ""


@click.command()
@click.option("--title", required=True, help="Name of the task in the table.")
@path_option("--checkpoint", "Fine-tuned checkpoint.")
@path_option("--train", "Labelled training file.")
@path_option("--unlabelled", "Further inputs of the same kind.", required=False)
@path_option("--dev", "Labelled file; a part of it is the gate.")
@click.option("--columns", type=ColumnsType(), help="Columns of the files by field.")
@click.option("--speedup", type=float)
@click.option("--max-drop", type=float)
@click.option("--gate-share", type=float, default=0.5, show_default=True)
@click.option("--lr", type=float, default=CompressionSettings.lr, show_default=True)
@click.option("--budget", type=DurationType(), default="60m", show_default=True)
@path_option("--work", "Folder for the bundle and the search.")
@path_option("--output", "Result file.")
def main(
    title: str,
    checkpoint: Path,
    train: Path,
    unlabelled: Path | None,
    dev: Path,
    columns: dict[str, str] | None,
    speedup: float | None,
    max_drop: float | None,
    gate_share: float,
    lr: float,
    budget: float,
    work: Path,
    output: Path,
) -> None:
    """Compress a checkpoint and write what was measured."""
    settings = CompressionSettings(budget_s=budget, gate_fraction=gate_share, lr=lr)
    found: Any = compress(
        checkpoint, work / "small", train, dev, Goal(speedup, max_drop),
        unlabelled=unlabelled, columns=columns, settings=settings, progress=click.echo,
    )  # fmt: skip
    values = found.to_dict()
    kept = {key: values[key] for key in ("passed", "reason", "compression", "measured")}
    write_result(output, {"title": title, **kept})
    click.echo(results_table(output.parent))


if __name__ == "__main__":
    main()
