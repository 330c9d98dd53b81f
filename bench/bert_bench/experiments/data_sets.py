"""Public data sets to fine-tune on: their files, their conversion to JSONL, and one recipe each."""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_models.training import TrainSettings
from bert_runtime.records import read_records

__all__ = ["DATA_SETS", "DataSet", "convert_data_set", "read_sst2_phrases", "rows_of"]

Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class DataSet:
    """Files of a data set, below the data folder, and the recipe for it."""

    train: str
    dev: str
    settings: TrainSettings
    read_train: Callable[[Path], Rows] | None = None
    """Converts a file to rows of JSONL. `None` if the trainer reads the files as they are."""
    read_dev: Callable[[Path], Rows] | None = None
    """The same for the dev file. `None` for `read_train`."""
    task: str = "text-classification"
    task_settings: dict[str, Any] = field(default_factory=dict)
    base: str | None = None
    """Data set whose fine-tuned checkpoint to start from. `None` for the base checkpoint."""


def convert_data_set(data_set: DataSet, data: Path, work: Path) -> tuple[Path, Path]:
    """Return the train and the dev file in a format that the trainer reads, converted into `work` if necessary."""
    sources = data / data_set.train, data / data_set.dev
    if data_set.read_train is None:
        return sources
    converted = work / "train.jsonl", work / "dev.jsonl"
    work.mkdir(parents=True, exist_ok=True)
    readers = data_set.read_train, data_set.read_dev or data_set.read_train
    for read, source, copy in zip(readers, sources, converted, strict=True):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in read(source))
        copy.write_text("".join(lines), encoding="utf-8")
    return converted


def rows_of(data_set: DataSet, data: Path, *, dev: bool) -> Rows:
    """Yield the rows of a data set's training or dev file by the field names of `Record`."""
    read = (data_set.read_dev if dev else None) or data_set.read_train
    path = data / (data_set.dev if dev else data_set.train)
    return read(path) if read else (dict(record.fields) for record in read_records(path))


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file)


def _sst2(path: Path) -> Rows:
    """Yield sentences: `label sentence` lines in the training file, tab-separated columns in the dev file."""
    for line in _lines(path):
        label, text = line.split(" ", 1) if path.suffix == ".train" else reversed(line.rsplit("\t", 1))
        if label != "label":
            yield {"text": text, "label": "positive" if label == "1" else "negative"}


def read_sst2_phrases(data: Path, without: Sequence[str]) -> Rows:
    """Yield the phrases and sentences of SST-2's larger training file that are no part of some sentences.

    Args:
        data: folder with the data sets' files.
        without: the sentences. Letter case and spaces do not count.
    """
    held = "\n".join(map(_squeezed, without))
    yield from (row for row in _sst2(data / "sst2/train.tsv.gz") if _squeezed(row["text"]) not in held)


def _squeezed(text: str) -> str:
    return "".join(text.lower().split())


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
        yield {"text": text, "labels": [names[int(label_id)] for label_id in ids.split(",")]}


def _banking77(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield {"text": row["text"], "label": row["category"]}


def _trec(path: Path) -> Rows:
    for line in path.read_text(encoding="iso-8859-1").splitlines():
        label, text = line.split(" ", 1)
        yield {"text": text, "label": label}


_SQUAD2_DEV_ARTICLES = (
    "Normans", "Huguenot", "Packet_switching", "Yuan_dynasty", "Scottish_Parliament", "Warsaw", "French_and_Indian_War",
)  # fmt: skip
"""Articles of SQuAD 2.0's dev file to evaluate on. They are in the dev file of SQuAD 1.1 as well, so that a checkpoint
that was fine-tuned on SQuAD 1.1 has not seen them; the other articles are in its training file."""


def _squad2(*, dev: bool) -> Callable[[Path], Rows]:
    """Return the reader of the training or the dev part of SQuAD 2.0's dev file."""

    def read(path: Path) -> Rows:
        for record in read_records(path):
            if (record.fields["title"] in _SQUAD2_DEV_ARTICLES) == dev:
                yield {key: record.fields[key] for key in ("question", "context", "answers")}

    return read


def _wnut17(**task_settings: Any) -> DataSet:
    return DataSet(
        "wnut17/wnut17train.conll",
        "wnut17/emerging.dev.conll",
        TrainSettings(epochs=5, lr=2e-4),
        task="token-classification",
        task_settings=task_settings,
    )


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
    "trec": DataSet("trec/TREC.train", "trec/TREC.test", TrainSettings(epochs=8, lr=3e-4), _trec),
    "wnut17": _wnut17(),
    "wnut17-crf": _wnut17(crf=True, bio=True),
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
