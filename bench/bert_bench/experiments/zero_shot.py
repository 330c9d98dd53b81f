"""Compare zero-shot classification with the pipeline of transformers: speed, scores and accuracy.

python -m bert_bench.experiments.zero_shot BUNDLE --checkpoint CKPT --banking77 FOLDER --labels FILE --output FILE

Speed is the time of one text with 100 candidate labels: the categories of BANKING77 and the first lines of a file.
The engines are the bundle in INT8 and in FP32, and the pipeline (PyTorch, FP32) at several batch sizes, of which the
fastest counts. Rounds are interleaved, and each starts with another engine. Scores are compared with the pipeline's in
FP32, with one label and with several labels per text. Accuracy is that on BANKING77's test questions, evenly spread,
with its 77 categories as labels: the model has seen none of them.
"""

import csv
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import Timing, paired_speedup
from bert_runtime import ZeroShotClassifier, load
from bert_runtime.machine import available_cores

__all__ = ["main", "results_table"]

_NUM_LABELS = 100
_BATCH_SIZES = (1, 8, 16, 32, 100)
_LONG_TEXT_WORDS = 60

Engine = Callable[[str], object]


def _read_labels(categories: Path, more: Path) -> list[str]:
    """Return 100 different labels: names of categories in words, then lines of another file."""
    names = [name.replace("_", " ") for name in json.loads(categories.read_text(encoding="utf-8"))]
    lines = more.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys([*names, *lines]))[:_NUM_LABELS]


def _spread(rows: Sequence[dict[str, str]], count: int) -> list[dict[str, str]]:
    return [rows[index * len(rows) // count] for index in range(min(count, len(rows)))]


def _time(engines: dict[str, Engine], text: str, rounds: int) -> dict[str, Any]:
    """Time all engines on one text; speed-ups are over the fastest pipeline."""
    timings = time_interleaved({name: partial(run, text) for name, run in engines.items()}, rounds, calls=1)
    best = min((name for name in timings if name.startswith("pipeline")), key=lambda name: timings[name].p50_ms)

    def row(timing: Timing) -> dict[str, float]:
        speedup = paired_speedup(timing, timings[best])
        return {"p50_ms": round(timing.p50_ms, 1), "speedup": round(speedup.median, 2)}

    return {"best_pipeline": best, **{name: row(timing) for name, timing in timings.items()}}


def _max_difference(bundle: Path, pipeline: Any, texts: list[str], labels: list[str], *, multi_label: bool) -> float:
    """Return the largest difference between FP32's scores and the pipeline's."""
    classifier = ZeroShotClassifier(load(bundle, precision="fp32"), labels, multi_label=multi_label)
    worst = 0.0
    for result, expected in zip(classifier(texts), pipeline(texts, labels, multi_label=multi_label), strict=True):
        found = dict(result.top())
        pairs = zip(expected["labels"], expected["scores"], strict=True)
        worst = max([worst, *(abs(found[label] - score) for label, score in pairs)])
    return worst


def _accuracy(bundle: Path, precision: str, rows: list[dict[str, str]], labels: list[str]) -> dict[str, float]:
    """Return the share of questions whose category is the best label, and is among the best five."""
    classifier = ZeroShotClassifier(load(bundle, precision=precision), labels)
    top = [[label for label, _ in classifier(row["text"]).top(5)] for row in rows]
    expected = [row["category"].replace("_", " ") for row in rows]
    first = np.mean([found[0] == label for found, label in zip(top, expected, strict=True)])
    five = np.mean([label in found for found, label in zip(top, expected, strict=True)])
    return {"accuracy": round(float(first), 4), "accuracy_at_5": round(float(five), 4)}


def results_table(result: Path) -> str:
    """Return a result file as Markdown tables: times and speed-ups, and accuracy."""
    found = json.loads(result.read_text("utf-8"))
    titles = {"int8": "bert-export, INT8", "fp32": "bert-export, FP32"}
    cases = [("short", f"{found['short']['tokens']} tokens"), ("long", f"{found['long']['tokens']} tokens")]
    engines = [name for name in found["short"]["engines"] if name != "best_pipeline"]
    best = {found[case]["engines"]["best_pipeline"] for case, _ in cases}
    rows = [
        [titles.get(name, f"transformers' {name}")]
        + [
            f"{found[case]['engines'][name]['p50_ms']:.0f} ms, {found[case]['engines'][name]['speedup']:.2f}×"
            for case, _ in cases
        ]
        for name in engines
        if name in titles or name in best
    ]
    speed = markdown_table([f"{found['labels']} labels, one text of", *(title for _, title in cases)], rows)
    quality = markdown_table(
        ["BANKING77, 77 categories", "accuracy", "among the best five"],
        [
            [titles[name], f"{values['accuracy']:.3f}", f"{values['accuracy_at_5']:.3f}"]
            for name, values in found["banking77"].items()
            if name in titles
        ],
    )
    return f"{speed}\n\n{quality}"


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path))
@path_option("--checkpoint", "Checkpoint that the bundle was exported from.")
@path_option("--banking77", "Folder of BANKING77.")
@path_option("--labels", "File of further labels, one in a line.")
@click.option("--count", type=int, default=500, show_default=True, help="Questions that accuracy is measured on.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Interleaved rounds.")
@path_option("--output", "Result file to write.")
def main(bundle: Path, checkpoint: Path, banking77: Path, labels: Path, count: int, rounds: int, output: Path) -> None:
    """Measure, and write the result."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(available_cores())
    candidates = _read_labels(banking77 / "categories.json", labels)
    with (banking77 / "test_odd_rows.csv").open(encoding="utf-8", newline="") as file:
        rows = _spread(list(csv.DictReader(file)), count)
    theirs = pipeline("zero-shot-classification", model=str(checkpoint), device="cpu")
    models = {precision: load(bundle, precision=precision) for precision in ("int8", "fp32")}
    engines: dict[str, Engine] = {name: ZeroShotClassifier(model, candidates) for name, model in models.items()}
    for size in _BATCH_SIZES:
        engines[f"pipeline, batch size {size}"] = partial(theirs, candidate_labels=candidates, batch_size=size)
    questions = [row["text"] for row in rows]
    texts = {"short": questions[0], "long": " ".join(" ".join(questions).split()[:_LONG_TEXT_WORDS])}
    result: dict[str, Any] = {"labels": len(candidates)}
    for name, text in texts.items():
        num_tokens = len(models["fp32"].tokenize([text])[0].windows[0])
        result[name] = {"tokens": num_tokens, "engines": _time(engines, text, rounds)}
        click.echo(result[name])
    result["max_score_difference"] = {
        name: _max_difference(bundle, theirs, questions[:20], candidates[:20], multi_label=name == "multi_label")
        for name in ("single_label", "multi_label")
    }
    categories = candidates[: len(json.loads((banking77 / "categories.json").read_text(encoding="utf-8")))]
    result["banking77"] = {"questions": len(rows), "chance": round(1 / len(categories), 4)}
    for precision in models:
        result["banking77"][precision] = _accuracy(bundle, precision, rows, categories)
    click.echo({name: result[name] for name in ("max_score_difference", "banking77")})
    write_result(output, result)


if __name__ == "__main__":
    main()
