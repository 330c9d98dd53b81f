"""Half the layers on BANKING77: fine-tuned alone, and taught by the whole model; quality and speed of both.

python -m bert_bench.experiments.distillation --base CKPT --teacher CKPT --data DIR --work DIR --output FILE

TEACHER is a fine-tune of BASE on DATA, which holds `train.csv` and `test_odd_rows.csv`. Runs that are finished in WORK
are not run again.
"""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import interleaved, write_result
from bert_bench.timing_statistics import paired_speedup
from bert_export import export
from bert_models import load_model, open_checkpoint, save_model
from bert_models.distillation import distill
from bert_models.distillation.layers import student_from_layers
from bert_models.training import REPORT_NAME, TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records
from bert_runtime.tokenization import Batch

__all__ = ["main"]

COLUMNS = {"label": "category"}
_SHAPES = ((1, 16), (1, 128), (8, 16), (32, 32))

SETTINGS = TrainSettings(epochs=5, lr=3e-4)
"""Of the teacher and of every student."""


def _shallow(base: Path, layers: int, folder: Path) -> Path:
    """A checkpoint with so many of the base's layers."""
    if not folder.is_dir():
        source = open_checkpoint(base)
        model = student_from_layers(load_model(source, source.task("sentence-embedding")), layers)
        folder.mkdir(parents=True)
        save_model(model, folder, tokenizer_from=source.path)
    return folder


STUDENTS = ("alone", "taught")
"""Layers of the base that learn from labels, and layers of the teacher that learn from both."""


def _train(
    name: str, seed: int, base: Path, teacher: Path, files: tuple[Path, Path], output: Path, layers: int
) -> None:
    """One run."""
    options: dict[str, Any] = {"columns": COLUMNS, "force": True, "progress": click.echo}
    settings = replace(SETTINGS, seed=seed)
    if name == "alone":
        fine_tune("text-classification", base, *files, output, settings, **options)
    else:
        distill(teacher, str(layers), *files, output, settings, **options)


def _measured(checkpoint: Path, bundle: Path, dev: Path) -> dict[str, Any]:
    """Metrics of both precisions, and what training reported."""
    if not (bundle / "bundle.json").is_file():
        export(checkpoint, bundle, evaluate=dev, columns=COLUMNS, force=True, progress=click.echo)
    records = read_records(dev, COLUMNS)
    metrics = {name: evaluate(load(bundle, precision=name), records) for name in ("fp32", "int8")}
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    kept = {
        key: report[key]
        for key in ("settings", "precision", "seconds", "best", "epochs", "distillation")
        if key in report
    }
    return {"metrics": metrics, "training": kept}


def _speed(bundles: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Latencies of both precisions of each bundle, and ratios to the first one's FP32."""
    sessions = {
        f"{name} {precision}": load(bundle, precision=precision).session
        for name, bundle in bundles.items()
        for precision in ("fp32", "int8")
    }
    shapes = {}
    for rows, tokens in _SHAPES:
        ones = np.ones((rows, tokens), dtype=np.int64)
        batch = Batch(ones * 2000, ones, ones * 0)
        runs = {name: partial(session.run, batch) for name, session in sessions.items()}
        timings = interleaved(runs, rounds, max(1, round(600 / (rows * tokens))))
        baseline = next(iter(timings.values()))
        shapes[f"{rows}x{tokens}"] = {
            name: {"p50_ms": round(t.p50_ms, 4), "speedup": round(paired_speedup(t, baseline).median, 3)}
            for name, t in timings.items()
        }
    return shapes


@click.command(help=__doc__)
@click.option("--base", type=click.Path(path_type=Path), required=True)
@click.option("--teacher", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--layers", type=int, default=3, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, default=(0, 1, 2), show_default=True)
@click.option("--only", multiple=True, type=click.Choice(STUDENTS), help="Train these, and write no result.")
@click.option("--rounds", type=int, default=25, show_default=True)
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
    """Trains what is missing, exports, measures, writes the result."""
    files = data / "train.csv", data / "test_odd_rows.csv"
    shallow = _shallow(base, layers, work / "base")
    for name, seed in product(only or STUDENTS, seeds):
        checkpoint = work / f"{name}-{seed}"
        if not (checkpoint / REPORT_NAME).is_file():
            click.echo(f"training {checkpoint.name}")
            _train(name, seed, shallow, teacher, files, checkpoint, layers)
    if only:
        return
    (work / "bundles").mkdir(exist_ok=True)
    runs = {
        name: _measured(teacher if name == "teacher" else work / name, work / "bundles" / name, files[1])
        for name in ("teacher", *(f"{name}-{seed}" for name, seed in product(STUDENTS, seeds)))
    }
    whole = runs["teacher"]["metrics"]["fp32"]["accuracy"]
    summary = {}
    for name in STUDENTS:
        found = [runs[f"{name}-{seed}"]["metrics"]["fp32"]["accuracy"] for seed in seeds]
        summary[name] = {"accuracy": mean(found), "of_the_teachers": mean(found) / whole}
        click.echo(
            f"{name}: {mean(found):.4f} ({', '.join(f'{each:.4f}' for each in found)}), {mean(found) / whole:.1%}"
        )
    shapes = _speed({name: work / "bundles" / name for name in ("teacher", f"taught-{seeds[0]}")}, rounds)
    what = f"BANKING77 with {layers} layers: alone, and taught by a fine-tune of the whole model; forward passes timed"
    write_result(output, {"what": what, "layers": layers, "summary": summary, "runs": runs, "shapes": shapes})


if __name__ == "__main__":
    main()
