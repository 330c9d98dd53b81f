"""Measure bf16 next to FP32 and INT8: speed of bundles at fixed shapes, and logits of a classifier on held-out texts.

python -m bert_bench.experiments.bf16 --speed NAME BUNDLE SHAPES --classifier BUNDLE FILE COLUMN --output FILE

The classifier's bundle has all three variants, the others may lack INT8. Times are medians of interleaved calls of the
graph on random token ids without padding, on all cores. A label that differs from FP32's counts as a flip; its margin
is the difference of FP32's two greatest logits.

Made bench/results/bf16.json.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import MISSING, markdown_table
from bert_runtime import Manifest, load
from bert_runtime.numerics import FloatArray
from bert_runtime.records import read_records
from bert_runtime.tasks import stack_single_window
from bert_runtime.timing import interleaved_medians
from bert_runtime.tokenization import Batch

__all__ = ["main", "results_table"]

_PRECISIONS = ("fp32", "bf16", "int8")
_CALLS_TOKENS = 24_000
"""Tokens that a shape's calls of one precision read, so that short shapes are called more often."""


def _speed(bundle: Path, shapes: str) -> dict[str, dict[str, float]]:
    """Return median milliseconds by shape, such as `8x128`, and precision."""
    precisions = [variant.precision for variant in Manifest.read(bundle).variants_for("cpu")]
    models = {precision: load(bundle, precision=precision) for precision in precisions}
    generator = np.random.default_rng(0)
    found = {}
    for shape in shapes.split(","):
        size = tuple(map(int, shape.split("x")))
        ids, zeros = generator.integers(1000, 30_000, size), np.zeros(size, dtype=np.int64)
        batch = Batch(ids, zeros + 1, zeros)
        calls = {name: partial(model.session.run, batch) for name, model in models.items()}
        rounds = max(7, _CALLS_TOKENS // ids.size)
        found[shape] = {name: round(s * 1e3, 4) for name, s in interleaved_medians(calls, rounds).items()}
        click.echo(f"{bundle} {shape}: {found[shape]}")
    return found


def _fidelity(logits: FloatArray, fp32: FloatArray) -> dict[str, Any]:
    """Compare logits [N, labels] with FP32's."""
    difference = np.abs(logits - fp32).astype(np.float64)
    second, first = np.sort(fp32, axis=1)[:, -2:].T
    flipped = logits.argmax(axis=1) != fp32.argmax(axis=1)
    margins = sorted((first - second)[flipped].astype(np.float64))
    return {
        "texts": len(logits),
        "mean": round(float(difference.mean()), 6),
        "max": round(float(difference.max()), 6),
        "flips": int(flipped.sum()),
        "flip_margins": [round(float(margin), 6) for margin in margins],
    }


def _classifier(bundle: Path, file: Path, column: str) -> dict[str, Any]:
    """Return the differences of a classifier's logits from FP32's on the texts of a file, by precision."""
    texts = [record.text() for record in read_records(file, {"text": column})]
    logits = {name: stack_single_window(load(bundle, precision=name).outputs(texts)) for name in _PRECISIONS}
    return {name: _fidelity(logits[name], logits["fp32"]) for name in _PRECISIONS[1:]}


def results_table(result: Path) -> str:
    """Return the speed by shape and the fidelity of a result file as two Markdown tables."""
    values = json.loads(result.read_text("utf-8"))
    tables = []
    speeds = []
    for name, shapes in values["speed"].items():
        for shape, ms in shapes.items():
            times = [f"{ms[key]:.3g} ms" if key in ms else MISSING for key in _PRECISIONS]
            speeds.append([name, shape, *times, f"{ms['fp32'] / ms['bf16']:.2f}×"])
    if speeds:
        header = ["Model", "Shape", "FP32", "bf16", "INT8", "bf16 over FP32"]
        tables.append(markdown_table(header, speeds, num_names=2))
    logits = []
    for name, found in values["classifier"].items():
        margin = f"{max(found['flip_margins']):.3f}" if found["flip_margins"] else MISSING
        title = "INT8" if name == "int8" else name
        differences = [f"{found['mean']:.4f}", f"{found['max']:.4f}"]
        logits.append([title, f"{found['texts']:,}", *differences, f"{found['flips']}", margin])
    header = ["Logits", "Texts", "Mean difference from FP32", "Greatest", "Other labels", "Their FP32 margin, at most"]
    tables.append(markdown_table(header, logits))
    return "\n\n".join(tables)


@click.command()
@click.option("--speed", nargs=3, multiple=True, help="Name, bundle, and shapes such as 1x16,8x128.")
@click.option("--classifier", nargs=3, required=True, help="Bundle, file of texts, and their column.")
@path_option("--output", "File to write.")
def main(speed: tuple[tuple[str, str, str], ...], classifier: tuple[str, str, str], output: Path) -> None:
    """Measure bf16 next to FP32 and INT8."""
    bundle, file, column = classifier
    fidelity = _classifier(Path(bundle), Path(file), column)
    click.echo(json.dumps(fidelity)[:400])
    timings = {name: _speed(Path(path), shapes) for name, path, shapes in speed}
    write_result(output, {"speed": timings, "classifier": fidelity})


if __name__ == "__main__":
    main()
