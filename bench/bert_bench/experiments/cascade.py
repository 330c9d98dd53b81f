"""Build a cascade of two bundles with `bert-export cascade`'s code, and measure what a text and a batch cost.

python -m bert_bench.experiments.cascade --title NAME --small BUNDLE --large BUNDLE --dev FILE --max-drop PCT \
    --work DIR --output FILE

The rows of FILE choose the threshold, and judge it by cross-validation: each by one chosen without it. Single texts are
timed on the small model, the large one and the cascade in turn; where the gate accepts it, batches of 32 as well.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export.calibration_texts import spread
from bert_export.cascade import build_cascade
from bert_export.cli.param_types import ColumnsType
from bert_runtime import Model, load
from bert_runtime.cascade import Cascade
from bert_runtime.records import read_records

__all__ = ["main", "results_table"]

_BATCH_SIZE = 32
_TIMED_TEXTS = 320
_ROUNDS = 5


def results_table(results: Path) -> str:
    """Return the cascades in a folder of results as two Markdown tables: their quality, and their cost."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"), reverse=True)]
    quality = markdown_table(
        ("", "rows", "large", "small", "cascade", "loss", "95 % interval", "answered by small"),
        [_quality_row(result) for result in found],
    )
    cost = markdown_table(
        (
            "ms a text",
            "large",
            "small",
            "cascade",
            "speed",
            "slowest, large",
            "slowest, cascade",
            "speed in batches of 32",
        ),
        [_cost_row(result) for result in found],
    )
    return f"{quality}\n\n{cost}"


def _quality_row(result: dict[str, Any]) -> list[str]:
    judged = result["cascade"]["judged_on"]
    interval = judged["drop_interval"]
    metrics = [f"{judged[name]:.4f}" for name in ("reference", "small", "found")]
    return [
        f"{result['title']}, {judged['metric']}", f"{judged['rows']:,}", *metrics,
        f"{judged['drop_percent']:.2f} %{'' if result['cascade']['passed'] else ', refused'}",
        f"{interval['low']:.2f} to {interval['high']:.2f} %", f"{judged['small_share']:.1%}",
    ]  # fmt: skip


def _cost_row(result: dict[str, Any]) -> list[str]:
    times = result["cascade"]["latency_ms"]
    means = {name: found["mean"] for name, found in times.items()}
    batch = result["batch_ms"]
    return [
        result["title"], *(f"{means[name]:.2f}" for name in ("large", "small", "cascade")),
        f"{means['large'] / means['cascade']:.2f}×", *(f"{times[name]['max']:.2f}" for name in ("large", "cascade")),
        f"{batch['large'] / batch['cascade']:.2f}×" if batch else "",
    ]  # fmt: skip


@click.command()
@click.option("--title", required=True, help="Name of the task in the table.")
@path_option("--small", "Bundle of the small model.")
@path_option("--large", "Bundle of the large model.")
@path_option("--dev", "Labelled file that neither model was trained on.")
@click.option("--columns", type=ColumnsType(), help="Columns of the file by field.")
@click.option("--max-drop", type=float, default=0.5, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the folds.")
@path_option("--work", "Folder for the cascade.")
@path_option("--output", "Result file.")
def main(
    title: str,
    small: Path,
    large: Path,
    dev: Path,
    columns: dict[str, str] | None,
    max_drop: float,
    seed: int,
    work: Path,
    output: Path,
) -> None:
    """Build a cascade and write what was measured."""
    records = read_records(dev, columns)
    found = build_cascade(
        small, large, work / "cascade", records, max_drop=max_drop, force=True, seed=seed, progress=click.echo
    )
    click.echo(found.reason)
    result: dict[str, Any] = {"title": title, "cascade": found.to_dict(), "batch_ms": {}, "overhead_us": None}
    if found.passed:
        cascade = load(work / "cascade")
        assert isinstance(cascade, Cascade), "a cascade was written"
        texts = spread([str(record.fields["text"]) for record in records], _TIMED_TEXTS)
        click.echo("timing batches, and what the cascade adds to a text of the small model")
        result |= {"batch_ms": _batch_ms(cascade, texts), "overhead_us": _overhead_us(cascade, texts)}
    write_result(output, result)
    click.echo(results_table(output.parent))


def _batch_ms(cascade: Cascade, texts: Sequence[str]) -> dict[str, float]:
    """Return the mean milliseconds of a batch of the small model, the large one and the cascade."""
    batches = [texts[start : start + _BATCH_SIZE] for start in range(0, len(texts), _BATCH_SIZE)]

    def answer_all(model: Model) -> None:
        for batch in batches:
            model(batch)

    models = {"small": cascade.small, "large": cascade.large, "cascade": cascade}
    timings = time_interleaved(
        {name: lambda model=model: answer_all(model) for name, model in models.items()},  # type: ignore[misc] # bound
        _ROUNDS, 1,
    )  # fmt: skip
    return {name: round(timing.p50_ms / len(batches), 4) for name, timing in timings.items()}


def _overhead_us(cascade: Cascade, texts: Sequence[str]) -> float:
    """Return how many microseconds longer than the small model the cascade takes for a text that this one answers."""
    differences_us = []
    for text, result in zip(texts, cascade(list(texts)), strict=True):
        if result.to_dict()["model"] == "small":
            small_s, cascade_s = _fastest_s((cascade.small, cascade), text)
            differences_us.append((cascade_s - small_s) * 1e6)
    return round(fmean(differences_us), 2)


def _fastest_s(models: Sequence[Model], text: str) -> list[float]:
    """Return the seconds of each model's fastest call, in turn."""
    fastest_s = [float("inf")] * len(models)
    for _ in range(_ROUNDS):
        for number, model in enumerate(models):
            model(text)
            start = time.perf_counter()
            model(text)
            fastest_s[number] = min(fastest_s[number], time.perf_counter() - start)
    return fastest_s


if __name__ == "__main__":
    main()
