"""Every head on real data: fine-tune a checkpoint, export it, evaluate FP32 and INT8.

python -m bert_bench.experiments.fine_tuning --base CKPT --data DIR --work DIR --output DIR [--only NAME]...

Writes one JSON file per data set into the output folder. A checkpoint that is already in the work folder is not trained
again.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import write_result
from bert_export import export
from bert_models.training import REPORT_NAME, TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.evaluation import evaluate
from bert_runtime.records import read_records

__all__ = ["DATA_SETS", "DataSet", "converted", "main", "results_table"]

Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class DataSet:
    """One data set's files, and the recipe for it. A reader turns a file into the rows that our JSONL holds."""

    train: str
    dev: str
    settings: TrainSettings
    reader: Callable[[Path], Rows] | None = None
    dev_reader: Callable[[Path], Rows] | None = None
    """The dev file's reader, where it is another."""
    task: str = "text-classification"
    task_settings: dict[str, Any] = field(default_factory=dict)
    base: str | None = None
    """The data set whose checkpoint to start from."""


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file)


def _sst2(path: Path) -> Rows:
    """Whole sentences for training, `label sentence`; the dev file is a table."""
    for line in _lines(path):
        label, text = line.split(" ", 1) if path.suffix == ".train" else reversed(line.rsplit("\t", 1))
        if label != "label":
            yield {"text": text, "label": "positive" if label == "1" else "negative"}


def _rte(path: Path) -> Rows:
    for line in _lines(path):
        _, premise, hypothesis, label = line.split("\t")
        if label != "label":
            yield {"text": premise, "text_pair": hypothesis, "label": label}


def _stsb(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        for first, second, score in csv.reader(file):
            yield {"text": first, "text_pair": second, "score": float(score)}


def _goemotions(path: Path) -> Rows:
    names = (path.parent / "labels.txt").read_text(encoding="utf-8").split()
    for line in _lines(path):
        text, ids, _ = line.split("\t")
        yield {"text": text, "labels": [names[int(each)] for each in ids.split(",")]}


def _banking77(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {"text": row["text"], "label": row["category"]}


_DEV_ARTICLES = (
    "Normans", "Huguenot", "Packet_switching", "Yuan_dynasty", "Scottish_Parliament", "Warsaw", "French_and_Indian_War",
)  # fmt: skip
"""The articles of SQuAD 2.0 that are also in the dev part of SQuAD 1.1; the others are in its training part."""


def _squad2(*, dev: bool) -> Callable[[Path], Rows]:
    def rows(path: Path) -> Rows:
        for record in read_records(path):
            if (record.fields["title"] in _DEV_ARTICLES) == dev:
                yield {key: record.fields[key] for key in ("question", "context", "answers")}

    return rows


DATA_SETS: dict[str, DataSet] = {
    "sst2": DataSet("sst2/stsa.binary.train", "sst2/dev.tsv", TrainSettings(epochs=2, lr=1e-4), _sst2),
    "rte": DataSet("rte/train.tsv", "rte/val.tsv", TrainSettings(epochs=5, lr=1e-4), _rte),
    "goemotions": DataSet(
        "goemotions/train.tsv.gz",
        "goemotions/dev.tsv",
        TrainSettings(epochs=2, lr=2e-4, batch_size=64, sort_by_length=True),
        _goemotions,
        task_settings={"problem_type": "multi_label"},
    ),
    "stsb": DataSet(
        "stsb/stsb-en-train.csv",
        "stsb/stsb-en-dev.csv",
        TrainSettings(epochs=3, lr=1e-4),
        _stsb,
        task_settings={"problem_type": "regression"},
    ),
    "banking77": DataSet(
        "banking77/train.csv", "banking77/test_odd_rows.csv", TrainSettings(epochs=5, lr=3e-4), _banking77
    ),
    "wnut17": DataSet(
        "wnut17/wnut17train.conll",
        "wnut17/emerging.dev.conll",
        TrainSettings(epochs=5, lr=2e-4),
        task="token-classification",
    ),
    "wnut17-crf": DataSet(
        "wnut17/wnut17train.conll",
        "wnut17/emerging.dev.conll",
        TrainSettings(epochs=5, lr=2e-4),
        task="token-classification",
        task_settings={"crf": True, "bio": True},
    ),
    "ud-ewt": DataSet(
        "ud_english_ewt/en_ewt-ud-train.conllu.gz",
        "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
        TrainSettings(epochs=2, lr=2e-4),
        task="token-classification",
    ),
    "squad1": DataSet(
        "squad_v1.1/train-articles.json.gz",
        "squad_v1.1/dev-articles.json.gz",
        TrainSettings(epochs=2, lr=2e-4),
        task="question-answering",
    ),
    "squad2": DataSet(
        "squad_v2.0/dev-v2.0.json.gz",
        "squad_v2.0/dev-v2.0.json.gz",
        TrainSettings(epochs=2, lr=1e-4),
        _squad2(dev=False),
        _squad2(dev=True),
        task="question-answering",
        base="squad1",
    ),
}


def converted(data_set: DataSet, data: Path, work: Path) -> tuple[Path, Path]:
    """The training and dev files in a format that the trainer reads."""
    files = data / data_set.train, data / data_set.dev
    if data_set.reader is None:
        return files
    written = work / "train.jsonl", work / "dev.jsonl"
    readers = data_set.reader, data_set.dev_reader or data_set.reader
    for reader, source, target in zip(readers, files, written, strict=True):
        rows = reader(source)
        target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return written


def results_table(results: Path) -> str:
    """The results as a Markdown table, a row per data set, in the order of `DATA_SETS`."""
    lines = ["| data set | task | training | metric | PyTorch | FP32 | INT8 | INT8 against FP32 |", "|---" * 8 + "|"]
    for name in DATA_SETS:
        path = results / f"{name}.json"
        if path.is_file():
            lines.append(_row(name, json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join(lines)


def _row(name: str, result: dict[str, Any]) -> str:
    training, metrics = result["training"], result["metrics"]
    epochs = training["settings"]["epochs"]
    recipe = f"{training['examples']['train']:,} examples, {epochs} epochs, lr {training['settings']['lr']:g}"
    shown = {"f1": "F1", "exact_match": "exact match", "spearman": "Spearman", "micro_f1": "micro F1"}
    keys = [result["metric"], *(key for key in ("macro_f1", "exact_match") if key in metrics["fp32"])]
    if result["metric"] not in ("micro_f1", "f1"):
        keys = keys[:1]
    columns = [
        " / ".join(f"{values[key]:.3f}" for key in keys)
        for values in (training["best"], metrics["fp32"], metrics["int8"])
    ]
    names = " / ".join(shown.get(key, key.replace("_", " ").replace("f1", "F1")) for key in keys)
    change = f"{result['int8_relative_change']:+.2%}"
    return f"| {name} | `{result['task']}` | {recipe} | {names} | {' | '.join(columns)} | {change} |"


def _run(name: str, base: Path, data: Path, work: Path, output: Path) -> None:
    """One data set from checkpoint to result file."""
    data_set, folder = DATA_SETS[name], work / name
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = converted(data_set, data, folder)
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    if data_set.base is not None:
        base = work / data_set.base / "checkpoint"
    if not (checkpoint / REPORT_NAME).is_file():
        fine_tune(
            data_set.task, base, train, dev, checkpoint, data_set.settings,
            task_settings=data_set.task_settings, force=True, progress=click.echo,
        )  # fmt: skip
    report = json.loads((checkpoint / REPORT_NAME).read_text(encoding="utf-8"))
    manifest = export(checkpoint, bundle, calibrate=train, evaluate=dev, force=True, progress=click.echo)
    records = read_records(dev)
    metrics = {v.precision: evaluate(load(bundle, precision=v.precision), records) for v in manifest.variants}
    before, after = (metrics[precision][report["metric"]] for precision in ("fp32", "int8"))
    result = {
        "what": f"{name}: fine-tuned on {data_set.train}, evaluated on {data_set.dev}",
        "task": report["task"]["name"],
        "metric": report["metric"],
        "training": {key: report[key] for key in ("settings", "precision", "seconds", "examples", "best", "epochs")},
        "metrics": metrics,
        "int8_relative_change": (after - before) / before,
        "int8_drift": dict(manifest.variant("int8").drift),
        "default": manifest.default_precision,
        "reason": manifest.default_reason,
    }
    write_result(output / f"{name}.json", result)
    click.echo(f"{name}: {report['metric']} {before:.4f} in FP32, {after:.4f} in INT8")


@click.command(help=__doc__)
@click.option("--base", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, type=click.Choice(list(DATA_SETS)))
def main(base: Path, data: Path, work: Path, output: Path, only: tuple[str, ...]) -> None:
    """Runs the data sets, one after another."""
    output.mkdir(parents=True, exist_ok=True)
    for name in only or DATA_SETS:
        _run(name, base, data, work, output)
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
