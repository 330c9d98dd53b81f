"""Measure distillation on BANKING77: quality and speed of students with fewer layers, fine-tuned vs. distilled.

python -m bert_bench.experiments.distillation --base CKPT --teacher CKPT --data DIR --work DIR --output FILE

TEACHER is a fine-tune of BASE on DATA, which holds `train.csv` and `test_odd_rows.csv`. Per seed, two students are
trained with the same settings: `alone` is fine-tuned from layers of BASE on the labels only; `taught` starts from
layers of TEACHER and is distilled from it. All are exported and evaluated in FP32 and INT8. Speed is that of inference
calls of TEACHER and of the first distilled student: interleaved, 25 rounds, medians. A student whose checkpoint is in
WORK is not trained again.

Made bench/results/distillation.json.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click

from bert_bench.experiments.harness import path_option, time_full_batch, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_export import export
from bert_models import load_model, open_checkpoint, save_model
from bert_models.distillation import distill
from bert_models.distillation.layers import student_from_layers
from bert_models.training import REPORT_NAME, TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records

__all__ = ["main", "results_table"]

_COLUMNS = {"label": "category"}
_SHAPES = ((1, 16), (1, 128), (8, 16), (32, 32))
"""Timed batches: sequences and tokens of each."""

_CALLS_TIMES_TOKENS = 600
"""Calls per round times tokens per batch, so that a round takes about as long at every shape."""

_SETTINGS = TrainSettings(epochs=5, lr=3e-4)
"""Settings of the teacher and of every student."""

_STUDENTS = ("alone", "taught")
"""Fine-tuned from layers of the base; distilled from the teacher, starting from its layers."""


def _truncate_base(base: Path, layers: int, folder: Path) -> Path:
    """Save a checkpoint with `layers` layers of the base into `folder`, unless it is there; return the folder."""
    if not folder.is_dir():
        source = open_checkpoint(base)
        model = student_from_layers(load_model(source, source.task("sentence-embedding")), layers)
        folder.mkdir(parents=True)
        save_model(model, folder, tokenizer_from=source.path)
    return folder


def _train(
    student: str, seed: int, base: Path, teacher: Path, files: tuple[Path, Path], output: Path, layers: int
) -> None:
    """Train one student."""
    options: dict[str, Any] = {"columns": _COLUMNS, "force": True, "progress": click.echo}
    settings = replace(_SETTINGS, seed=seed)
    if student == "alone":
        fine_tune("text-classification", base, *files, output, settings, **options)
    else:
        distill(teacher, str(layers), *files, output, settings, **options)


def _quality(checkpoint: Path, bundle: Path, dev: Path) -> dict[str, Any]:
    """Export a checkpoint, unless that is done; return the metrics of FP32 and INT8 and the training report."""
    if not (bundle / "bundle.json").is_file():
        export(checkpoint, bundle, evaluate=dev, columns=_COLUMNS, force=True, progress=click.echo)
    records = read_records(dev, _COLUMNS)
    metrics = {name: evaluate(load(bundle, precision=name), records) for name in ("fp32", "int8")}
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    kept = ("settings", "precision", "seconds", "best", "epochs", "distillation")
    return {"metrics": metrics, "training": {key: report[key] for key in kept if key in report}}


def _speed(bundles: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Time FP32 and INT8 of each bundle at every shape; speed-ups are over the first bundle's FP32."""
    engines = {
        f"{name} {precision}": load(bundle, precision=precision).session.run
        for name, bundle in bundles.items()
        for precision in ("fp32", "int8")
    }
    shapes = {}
    for sequences, tokens in _SHAPES:
        calls = max(1, round(_CALLS_TIMES_TOKENS / (sequences * tokens)))
        shapes[f"{sequences}x{tokens}"] = time_full_batch(engines, sequences, tokens, rounds, calls)
    return shapes


def _summarize(runs: dict[str, dict[str, Any]], seeds: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Return each student's mean FP32 accuracy over the seeds, also as a fraction of the teacher's; print it."""
    teacher = runs["teacher"]["metrics"]["fp32"]["accuracy"]
    summary = {}
    for student in _STUDENTS:
        accuracies = [runs[f"{student}-{seed}"]["metrics"]["fp32"]["accuracy"] for seed in seeds]
        summary[student] = {"accuracy": mean(accuracies), "of_the_teachers": mean(accuracies) / teacher}
        values = ", ".join(f"{accuracy:.4f}" for accuracy in accuracies)
        click.echo(f"{student}: {mean(accuracies):.4f} ({values}), {mean(accuracies) / teacher:.1%}")
    return summary


def results_table(result: Path) -> str:
    """Return the accuracies and the speed-ups in a result file as two Markdown tables."""
    values = json.loads(result.read_text("utf-8"))
    teacher = values["runs"]["teacher"]["metrics"]["fp32"]["accuracy"]
    rows = [["teacher", f"{teacher:.4f}", "100.0%"]]
    rows += [[name, f"{v['accuracy']:.4f}", f"{v['of_the_teachers']:.1%}"] for name, v in values["summary"].items()]
    quality = markdown_table([f"{values['layers']} layers, mean of the seeds", "accuracy", "of the teacher's"], rows)
    shapes = values["shapes"]
    names = dict.fromkeys(name for engines in shapes.values() for name in engines)
    rows = [[name, *(f"{engines[name]['speedup']:.2f}×" for engines in shapes.values())] for name in names]
    speed = markdown_table(["speed", *(shape.replace("x", "×") for shape in shapes)], rows)
    return f"{quality}\n\n{speed}"


@click.command(help=__doc__)
@path_option("--base", "Checkpoint folder that the teacher was fine-tuned from.")
@path_option("--teacher", "Checkpoint folder of the teacher.")
@path_option("--data", "Folder with BANKING77's files.")
@path_option("--work", "Folder for checkpoints and bundles.")
@path_option("--output", "Result file to write.")
@click.option("--layers", type=int, default=3, show_default=True, help="Layers of the students.")
@click.option(
    "--seed", "seeds", type=int, multiple=True, default=(0, 1, 2), show_default=True, help="Seeds to train with."
)
@click.option("--only", multiple=True, type=click.Choice(_STUDENTS), help="Train these students, and measure nothing.")
@click.option("--rounds", type=int, default=25, show_default=True, help="Rounds of timing.")
def main(
    base: Path,
    teacher: Path,
    data: Path,
    work: Path,
    output: Path,
    layers: int,
    seeds: tuple[int, ...],
    only: tuple[str, ...],
    rounds: int,
) -> None:
    """Train the students that are missing, export, measure, write the result."""
    files = data / "train.csv", data / "test_odd_rows.csv"
    truncated = _truncate_base(base, layers, work / "base")
    for student, seed in product(only or _STUDENTS, seeds):
        checkpoint = work / f"{student}-{seed}"
        if not (checkpoint / REPORT_NAME).is_file():
            click.echo(f"training {checkpoint.name}")
            _train(student, seed, truncated, teacher, files, checkpoint, layers)
    if only:
        return
    bundles = work / "bundles"
    bundles.mkdir(exist_ok=True)
    runs = {
        name: _quality(teacher if name == "teacher" else work / name, bundles / name, files[1])
        for name in ("teacher", *(f"{student}-{seed}" for student, seed in product(_STUDENTS, seeds)))
    }
    summary = _summarize(runs, seeds)
    shapes = _speed({name: bundles / name for name in ("teacher", f"taught-{seeds[0]}")}, rounds)
    what = f"BANKING77 with {layers} layers: alone, and taught by a fine-tune of the whole model; forward passes timed"
    write_result(output, {"what": what, "layers": layers, "summary": summary, "runs": runs, "shapes": shapes})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
