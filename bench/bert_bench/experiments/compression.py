"""Measure `bert-export compress` on a fine-tuned checkpoint: how much faster it gets, and what it loses.

python -m bert_bench.experiments.compression --checkpoint CKPT --train FILE --dev FILE (--speedup X | --max-drop PCT) \
    --budget 15m --work DIR --output FILE

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


def results_table(result: Path) -> str:
    """Return the measured models of a result file, and the gate's verdict, as Markdown."""
    values = json.loads(result.read_text(encoding="utf-8"))
    record, rows = values["compression"], values["measured"]
    gate, speed = record["gate"], record["time"]
    first = rows[0]
    base = [f"{first['uncompressed_latency_ms']:.3f}", "1.00×", f"{first['uncompressed']:.4f}", ""]
    table = [["uncompressed INT8", *base]]
    for row in rows:
        name = f"{len(row['layers'])} layers, width {row['intermediate_size']}"
        interval = "{:.4f}–{:.4f}".format(*row["compressed_interval"])
        table.append([name, f"{row['latency_ms']:.3f}", f"{row['speedup']:.2f}×", f"{row['compressed']:.4f}", interval])
    header = [f"on {first['rows']:,} rows of the search", "ms a text", "speed", first["metric"], "95 % interval"]
    low, high = gate["drop_percent_interval"]
    verdict = (
        f"On {gate['rows']:,} rows that the search never saw: {gate['metric']} {gate['compressed']:.4f} against "
        f"{gate['uncompressed']:.4f} of the uncompressed INT8, a loss of {gate['drop_percent']:.2f} % (95 % interval "
        f"{low:.2f} to {high:.2f}), at {speed['speedup']:.2f}× its speed, after {record['seconds'] / 60:.0f} minutes."
    )
    return f"{markdown_table(header, table)}\n\n{verdict}"


@click.command()
@path_option("--checkpoint", "Fine-tuned checkpoint.")
@path_option("--train", "Labelled training file.")
@path_option("--dev", "Labelled file; half of it is the gate.")
@click.option("--columns", type=ColumnsType(), help="Columns of the files by field.")
@click.option("--speedup", type=float)
@click.option("--max-drop", type=float)
@click.option("--gate-share", type=float, default=0.5, show_default=True)
@click.option("--budget", type=DurationType(), default="60m", show_default=True)
@path_option("--work", "Folder for the bundle and the search.")
@path_option("--output", "Result file.")
def main(
    checkpoint: Path,
    train: Path,
    dev: Path,
    columns: dict[str, str] | None,
    speedup: float | None,
    max_drop: float | None,
    gate_share: float,
    budget: float,
    work: Path,
    output: Path,
) -> None:
    """Compress a checkpoint and write what was measured."""
    settings = CompressionSettings(budget_s=budget, gate_fraction=gate_share)
    found: Any = compress(
        checkpoint, work / "small", train, dev, Goal(speedup, max_drop),
        columns=columns, settings=settings, progress=click.echo,
    )  # fmt: skip
    values = found.to_dict()
    write_result(output, {key: values[key] for key in ("passed", "reason", "compression", "measured")})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
