"""Rows and checkpoints that compression is measured on: the tasks of `data_sets.DATA_SETS`, with rows for the gate.

The gate has the data set's dev file. A tenth of the training rows is held out for the search, and to select the best
epoch of the uncompressed model on.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.data_sets import DATA_SETS, read_sst2_phrases, rows_of
from bert_export.calibration_texts import INPUT_FIELDS
from bert_models.training import REPORT_NAME, TrainSettings, fine_tune
from bert_models.training.dev_split import split_rows
from bert_models.training.infer_task import label_reader
from bert_runtime.records import read_records

__all__ = ["TITLES", "UNLABELLED_TITLES", "TaskFiles", "fine_tuned", "recipe", "task_files", "unlabelled_file"]

TITLES = {
    "sst2": "SST-2",
    "banking77": "BANKING77",
    "stsb": "STS-B",
    "wnut17": "WNUT-17",
    "ud-ewt": "UD-EWT",
    "rte": "RTE",
    "squad1": "SQuAD 1.1",
    "goemotions": "GoEmotions",
    "trec": "TREC",
}
"""The tasks, and their names in the table."""

UNLABELLED_TITLES = {**TITLES, "squad2": "SQuAD 2.0"}
"""The data sets whose training rows may be further inputs."""

_HELD_ROWS = {"sst2": 1000, "trec": 1500}
"""Training rows that are held out where the dev file has few: half for the search, half for the gate, beside 872
sentences of SST-2's dev file and 500 questions of TREC's."""

_DATA_SETS = {
    **DATA_SETS,
    "sst2": replace(DATA_SETS["sst2"], settings=TrainSettings(epochs=2, lr=2e-4, batch_size=64)),
    "stsb": replace(DATA_SETS["stsb"], task="sentence-embedding", task_settings={}),
    "goemotions": replace(DATA_SETS["goemotions"], settings=TrainSettings(epochs=4, lr=2e-4)),
}
"""The data sets, some with another recipe or task. SST-2's recipe is for phrases. GoEmotions' other one leaves a model
that has learnt too little to be compared with (micro F1 0.42); batches of 64 at 5e-4 give one that knows the most
frequent label only (0.30 after an epoch). The base is a sentence-embedding model, which is better at STS-B (0.877 on
the search's rows) than a classifier of pairs on top of it (0.840 at 2e-4)."""


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task, as JSONL."""

    train: Path
    dev: Path
    test: Path


def task_files(name: str, data: Path, folder: Path) -> TaskFiles:
    """Return the files of a task; write them unless they are there.

    Args:
        name: a key of `TITLES`.
        data: folder with the data sets' files.
        folder: where they are written.
    """
    files = TaskFiles(*(folder / f"{part}.jsonl" for part in ("train", "dev", "test")))
    if files.test.is_file():
        return files
    folder.mkdir(parents=True, exist_ok=True)
    data_set, reader = _DATA_SETS[name], None
    if data_set.task in ("text-classification", "token-classification"):
        reader = label_reader(data_set.task, data_set.task_settings.get("problem_type"))
    _write(files.train, rows_of(data_set, data, dev=False))
    records = read_records(files.train)
    fraction = _HELD_ROWS[name] / len(records) if name in _HELD_ROWS else None
    kept, held = split_rows(records, fraction, 0, reader)
    train, dev = ([dict(records[index].fields) for index in part] for part in (kept, held))
    test = list(rows_of(data_set, data, dev=True))
    if name == "sst2":
        train = list(read_sst2_phrases(data, without=[row["text"] for row in dev]))
    if name in _HELD_ROWS:
        dev, test = dev[::2], test + dev[1::2]
    _write(files.train, train)
    _write(files.dev, dev)
    _write(files.test, test)
    return files


def unlabelled_file(name: str, data: Path, folder: Path) -> Path:
    """Return a file with the inputs of a data set's training rows; write it unless it is there.

    Args:
        name: a key of `UNLABELLED_TITLES`.
        data: folder with the data sets' files.
        folder: where it is written.
    """
    path = folder / f"{name}-inputs.jsonl"
    if not path.is_file():
        rows = rows_of(_DATA_SETS[name], data, dev=False)
        _write(path, ({field: row[field] for field in INPUT_FIELDS if field in row} for row in rows))
    return path


def _write(path: Path, rows: Iterable[Any]) -> None:
    lines: Sequence[str] = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def recipe(name: str, **changes: Any) -> TrainSettings:
    """Return the settings that a task is trained with, of which some may be changed."""
    return replace(_DATA_SETS[name].settings, sort_by_length=True, **changes)


def fine_tuned(name: str, base: Path, files: TaskFiles, folder: Path, **changes: Any) -> Path:
    """Return the folder of the uncompressed checkpoint; fine-tune it unless it is there.

    Args:
        name: a key of `TITLES`.
        base: checkpoint to start from.
        files: the task's files; its gate is not used.
        folder: where the checkpoint is written.
        changes: settings of the training in place of the task's.
    """
    data_set, checkpoint = _DATA_SETS[name], folder / "checkpoint"
    if not (checkpoint / REPORT_NAME).is_file():
        fine_tune(
            data_set.task, base, files.train, files.dev, checkpoint, recipe(name, **changes),
            task_settings=data_set.task_settings, force=True, progress=click.echo,
        )  # fmt: skip
    return checkpoint
