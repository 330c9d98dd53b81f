"""Fine-tuning from one checkpoint with our classes and with transformers': the same data, recipe, loop and seeds.

python -m bert_bench.experiments.fine_tuning_vs_transformers --base CKPT --data DIR --work DIR --output DIR \
    [--only NAME]... [--seed N]... [--epochs N]

The recipes are those of `fine_tuning`. Writes one JSON file per data set, class and seed into the output folder; a run
that is there is not made again.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click

from bert_bench.experiments.fine_tuning import DATA_SETS, converted
from bert_bench.experiments.harness import write_result
from bert_bench.experiments.transformers_fine_tuning import train_transformers
from bert_models.training import fine_tune

__all__ = ["NAMES", "main", "results_table"]

NAMES = ("sst2", "stsb", "banking77", "wnut17")
"""Of `DATA_SETS`."""

_SIDES = ("ours", "transformers")


def results_table(results: Path) -> str:
    """The results as a Markdown table, a row per data set: the best epoch's metric over the seeds that both have."""
    lines = ["| data set | metric | seeds | ours | transformers | difference of the means |", "|---" * 6 + "|"]
    for name in NAMES:
        runs = {side: _runs(results, name, side) for side in _SIDES}
        seeds = sorted(runs["ours"].keys() & runs["transformers"].keys())
        if not seeds:
            continue
        metric = runs["ours"][seeds[0]]["metric"]
        values = {side: [runs[side][seed]["best"][metric] for seed in seeds] for side in _SIDES}
        columns = [_shown(values[side]) for side in _SIDES]
        difference = mean(values["ours"]) - mean(values["transformers"])
        lines.append(f"| {name} | {metric} | {len(seeds)} | {' | '.join(columns)} | {difference:+.4f} |")
    return "\n".join(lines)


def _runs(results: Path, name: str, side: str) -> dict[int, dict[str, Any]]:
    """The results of one data set and one side by their seed."""
    found = (json.loads(path.read_text("utf-8")) for path in results.glob(f"{name}-{side}-*.json"))
    return {each["settings"]["seed"]: each for each in found}


def _shown(values: list[float]) -> str:
    """Mean and standard deviation, or all values where they are two at most."""
    if len(values) < 3:
        return ", ".join(f"{value:.4f}" for value in values)
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def _train(name: str, side: str, base: Path, files: tuple[Path, Path], changes: dict[str, Any]) -> dict[str, Any]:
    """One run: metric, best epoch, all epochs, settings."""
    data_set = DATA_SETS[name]
    settings = replace(data_set.settings, **changes)
    options: dict[str, Any] = {"task_settings": data_set.task_settings}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if side == "ours":
            return fine_tune(data_set.task, base, *files, folder, settings, **options)
        return train_transformers(data_set.task, base, files, settings, folder, **options)


def _run(name: str, side: str, base: Path, data: Path, work: Path, output: Path, changes: dict[str, Any]) -> None:
    run = f"{side}-{changes['seed']}"
    path, folder = output / f"{name}-{run}.json", work / name / run
    if path.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = converted(DATA_SETS[name], data, folder)
    started = time.monotonic()
    report = _train(name, side, base, files, changes)
    kept = {key: report[key] for key in ("metric", "best", "epochs", "settings")}
    seconds = round(time.monotonic() - started, 1)
    what = f"{name}: {side}, fine-tuned on {DATA_SETS[name].train}, measured on {DATA_SETS[name].dev}"
    write_result(path, {"what": what, **kept, "seconds": seconds})
    click.echo(f"{name} {run}: {report['metric']} {report['best'][report['metric']]:.4f} after {seconds:.0f} s")


@click.command(help=__doc__)
@click.option("--base", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, type=click.Choice(NAMES))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1), show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="bf16", show_default=True)
@click.option("--epochs", type=int, help="Instead of those of the recipe.")
@click.option("--sort-by-length", is_flag=True, help="Batches of similar lengths, on both sides.")
def main(
    base: Path,
    data: Path,
    work: Path,
    output: Path,
    only: tuple[str, ...],
    seeds: tuple[int, ...],
    precision: str,
    epochs: int | None,
    sort_by_length: bool,
) -> None:
    """Makes the runs, one after another."""
    output.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {"precision": precision, **({} if epochs is None else {"epochs": epochs})}
    if sort_by_length:
        changes["sort_by_length"] = True
    for seed in seeds:
        for name in only or NAMES:
            for side in _SIDES:
                _run(name, side, base, data, work, output, {**changes, "seed": seed})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
