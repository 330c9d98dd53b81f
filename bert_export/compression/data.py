"""The rows of a search: what trains the candidates, what the search judges them on, and what only the gate sees."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from bert_export.calibration_texts import INPUT_FIELDS
from bert_export.compression.augmentation import num_words
from bert_export.compression.planning import TrainingRows
from bert_models.distillation.run import unlabelled_examples
from bert_models.errors import CompressionError
from bert_models.training.dev_split import shared_texts, split_rows
from bert_models.training.infer_task import task_label_reader
from bert_models.training.run import training_examples
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, SentenceEmbedding, Task, TextInput
from bert_runtime.tasks.text_inputs import separate_texts
from bert_runtime.tasks.tokens import TokenTask
from bert_runtime.tokenization import TextTokenizer

__all__ = ["SearchData", "SearchFiles", "read_search_data"]

_MIN_ROWS = 50
"""Rows without which neither part of dev can tell models apart: at 90 % accuracy, the standard error of 50 rows is 4.2
points, and of 1,000 rows 0.9."""


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """The rows of a search, with the field names of `Record`."""

    train: Sequence[Record]
    """Rows with labels."""
    unlabelled: Sequence[Record]
    """Further rows to train on, which the teacher labels."""
    search: Sequence[Example]
    """The dev rows that the search sees."""
    gate: Sequence[Example]
    """The rows that only the gate sees."""
    search_records: Sequence[Record]
    """The rows of `search`."""
    task: Task
    """The task of the rows."""
    gate_texts: frozenset[str]
    """Texts of `gate` that no other row may have, see `_own_texts`."""
    num_left_out: int
    """How many rows are neither trained on nor searched with since the gate has their text, too."""
    copies: Sequence[Record] = ()
    """Rows to train on that were made of the others, see `augmentation`; the teacher labels them, too."""

    @cached_property
    def given(self) -> list[Record]:
        """The rows to train on that the user gave, in random order: the first ones are a sample of them."""
        rows = [*self.train, *self.unlabelled]
        return [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]

    @cached_property
    def training_rows(self) -> TrainingRows:
        """How many rows there are to train on, and how long copies are."""
        given, copies = (list(map(num_words, records)) for records in (self.given, self.copies))
        longer = fmean(copies) / max(fmean(given), 1) if copies else 1.0
        return TrainingRows(num_given=len(given), num_copies=len(copies), copy_work=longer)

    def with_copies(self, copies: Sequence[Record]) -> "SearchData":
        """Return the same rows and copies to train on, but for copies that have a text of the gate."""
        return replace(self, copies=_without(self.gate_texts, self.task, copies))

    def texts(self) -> list[TextInput]:
        """Return the inputs that the search judges candidates on."""
        return [item for example in self.search for item in example.inputs]

    def write(self, folder: Path) -> "SearchFiles":
        """Write the given rows and those of dev that the search sees as JSONL, unless they are there."""
        dev = folder / "search.jsonl"
        _write_jsonl(dev, self.search_records)
        return SearchFiles(given=self.write_first(folder, len(self.given)), dev=dev)

    def write_first(self, folder: Path, num_rows: int) -> Path:
        """Write the first rows to train on as JSONL, unless they are there: given ones, and then copies."""
        path = folder / ("train.jsonl" if num_rows == len(self.given) else f"train-{num_rows}.jsonl")
        _write_jsonl(path, [*self.given, *self.copies][:num_rows])
        return path


@dataclass(frozen=True, kw_only=True)
class SearchFiles:
    """The files that trainings and exports of a search read."""

    given: Path
    """The rows to train on that the user gave. INT8 is calibrated on them: on what people have written."""
    dev: Path
    """The dev rows that the search sees."""


def read_search_data(
    task: Task,
    tokenizer: TextTokenizer,
    train: Path,
    unlabelled: Path | None,
    dev: Path,
    test: Path | None,
    columns: Mapping[str, str] | None,
    fraction: float,
    seed: int,
) -> SearchData:
    """Read and check the files, and set rows aside for the gate: those of a file of its own, or a part of dev.

    A part is sampled by label, with a seed; rows with the same text are in the same part, see `split_rows`. Training
    and dev rows with a text of the gate are left out: the student would learn the teacher's answers to it.

    Args:
        task: the task of the model, with its labels.
        tokenizer: its tokenizer.
        train: labelled training file.
        unlabelled: file of further inputs, or `None`.
        dev: labelled file.
        test: labelled file for the gate; `None` sets a part of dev aside.
        columns: column names by field, see `read_records`.
        fraction: fraction of the dev rows to set aside if there is no `test`.
        seed: seed of the split.

    Raises:
        DataError: a file cannot be read, or a row does not fit the task or the model's labels.
        CompressionError: there are too few rows to judge by, or all training rows are left out.
    """
    train_records, dev_records = read_records(train, columns), read_records(dev, columns)
    input_columns = {field: name for field, name in (columns or {}).items() if field in INPUT_FIELDS}
    more = [] if unlabelled is None else read_records(unlabelled, input_columns)
    training_examples(task, tokenizer, train_records)
    # Texts to embed are trained on without labels, and only that tokenizes them.
    unlabelled_examples(task, tokenizer, [*train_records, *more] if isinstance(task, SentenceEmbedding) else more)
    if test is None:
        search_records, gate_records = _split_dev(task, dev_records, dev, fraction, seed)
    else:
        search_records, gate_records = dev_records, read_records(test, columns)
    gate_texts = frozenset[str]().union(*(_own_texts(task, record) for record in gate_records))
    kept, kept_more, kept_search = (
        _without(gate_texts, task, records) for records in (train_records, more, search_records)
    )
    if not kept:
        raise CompressionError(
            f"{train}: all rows have texts of {test or dev} that are set aside for the gate; give other rows"
        )
    for path, records in ((dev, kept_search), (test or dev, gate_records)):
        if len(records) < _MIN_ROWS:
            without = "" if records is gate_records else ", without those that have a text of the gate"
            raise CompressionError(
                f"{path}: expected at least {_MIN_ROWS} rows to judge a smaller model by; found {len(records)}{without}"
            )
    return SearchData(
        train=kept,
        unlabelled=kept_more,
        num_left_out=len(train_records)
        + len(more)
        + len(search_records)
        - len(kept)
        - len(kept_more)
        - len(kept_search),
        search=build_examples(task, tokenizer, kept_search),
        gate=build_examples(task, tokenizer, gate_records),
        search_records=kept_search,
        task=task,
        gate_texts=gate_texts,
    )


def _own_texts(task: Task, record: Record) -> set[str]:
    """Return the texts of a row that rows to train on and rows of the gate must not share.

    That is `shared_texts`; of two texts to embed it is each, since the student learns the vector of either, with or
    without a prompt, and of tokens it is the text that they make, which is what rows without labels have.
    """
    if isinstance(task, SentenceEmbedding):
        return {repr(item.text) for item in separate_texts(record)}
    if isinstance(task, TokenTask):
        return {repr(item.text) for item in task.inputs(record)}
    return shared_texts(record)


def _without(texts: frozenset[str], task: Task, records: Sequence[Record]) -> list[Record]:
    """Return the rows that have none of these texts."""
    return [record for record in records if texts.isdisjoint(_own_texts(task, record))]


def _split_dev(
    task: Task, records: Sequence[Record], dev: Path, fraction: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """Return the rows of dev that the search sees, and those that are set aside.

    Raises:
        CompressionError: there are too few to judge by.
    """
    needed = _MIN_ROWS / min(fraction, 1 - fraction)
    if len(records) < needed:
        raise CompressionError(
            f"{dev}: expected at least {needed:.0f} rows, {_MIN_ROWS} in either part, to judge a smaller model by; "
            f"found {len(records)}"
        )
    reader = task_label_reader(task)
    try:
        searched, gated = split_rows(records, fraction, seed, reader, keep_labels=False)
    except DataError:
        raise CompressionError(
            f"{dev}: expected rows of several texts, some of which are set aside for the gate; all {len(records)} rows "
            "have the same one: give the gate's rows with --test"
        ) from None
    return [records[index] for index in searched], [records[index] for index in gated]


def _write_jsonl(path: Path, records: Sequence[Record]) -> None:
    """Write rows as JSONL, unless the file is there."""
    if path.is_file():
        return
    with atomic_write(path) as stream:
        for record in records:
            try:
                stream.write(json.dumps(dict(record.fields), ensure_ascii=False) + "\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"{record.where}: cannot be copied as JSON: {error}") from None
