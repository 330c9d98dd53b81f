"""The rows of a search: what trains the candidates, what the search judges them on, and what only the gate sees."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_models.errors import CompressionError
from bert_models.training.dev_split import shared_text, split_rows
from bert_models.training.infer_task import label_reader
from bert_runtime.bundle.atomic_files import atomic_write
from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, Task, TextInput
from bert_runtime.tokenization import TextTokenizer

__all__ = ["SearchData", "read_search_data"]

_MIN_ROWS = 50
"""Rows without which neither part of dev can tell models apart: at 90 % accuracy, the standard error of 50 rows is 4.2
points, and of 1,000 rows 0.9."""

_INPUT_FIELDS = ("text", "text_pair", "question", "context", "tokens")


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """The rows of a search, with the field names of `Record`."""

    train: Sequence[Record]
    """Rows with labels."""
    unlabelled: Sequence[Record]
    """Further rows to train on, which the teacher labels."""
    search: Sequence[Example]
    """The part of dev that the search sees."""
    gate: Sequence[Example]
    """The part that only the gate sees."""
    search_records: Sequence[Record]
    """The rows of `search`."""
    num_left_out: int
    """How many rows are not trained on since the gate has their text, too."""

    def texts(self) -> list[TextInput]:
        """Return the inputs that the search judges candidates on."""
        return [item for example in self.search for item in example.inputs]

    def write(self, folder: Path) -> "tuple[Path, Path]":
        """Write the training rows and the search's dev rows as JSONL, unless they are there; return the two files."""
        train, dev = folder / "train.jsonl", folder / "search.jsonl"
        for path, records in ((train, [*self.train, *self.unlabelled]), (dev, self.search_records)):
            if not path.is_file():
                _write_jsonl(path, records)
        return train, dev


def read_search_data(
    task: Task,
    tokenizer: TextTokenizer,
    train: Path,
    unlabelled: Path | None,
    dev: Path,
    columns: Mapping[str, str] | None,
    fraction: float,
    seed: int,
) -> SearchData:
    """Read and check the files, and set a part of dev aside.

    Rows are sampled by label, with a seed; rows with the same text are in the same part, see `split_rows`. Training
    rows with a text of the part set aside are left out: the student would learn the teacher's answers to it.

    Args:
        task: The task of the model, with its labels.
        tokenizer: Its tokenizer.
        train: Labelled training file.
        unlabelled: File of further inputs, or `None`.
        dev: Labelled file.
        columns: Column names by field, see `read_records`.
        fraction: Fraction of the dev rows to set aside.
        seed: Seed of the split.

    Raises:
        DataError: A file cannot be read, or a row does not fit the task or the model's labels.
        CompressionError: There are too few dev rows to judge by, or all training rows are left out.
    """
    train_records, dev_records = read_records(train, columns), read_records(dev, columns)
    input_columns = {field: name for field, name in (columns or {}).items() if field in _INPUT_FIELDS}
    more = [] if unlabelled is None else _read_inputs(task, unlabelled, input_columns)
    build_examples(task, tokenizer, train_records)
    needed = _MIN_ROWS / min(fraction, 1 - fraction)
    if len(dev_records) < needed:
        raise CompressionError(
            f"{dev}: expected at least {needed:.0f} rows, {_MIN_ROWS} in either part, to judge a smaller model by; "
            f"found {len(dev_records)}"
        )
    reader = label_reader(task.name, getattr(task, "problem_type", None))
    searched, gated = split_rows(dev_records, fraction, seed, reader)
    search_records = [dev_records[index] for index in searched]
    gate_texts = {shared_text(dev_records[index]) for index in gated} - {None}
    kept = [record for record in train_records if shared_text(record) not in gate_texts]
    kept_more = [record for record in more if shared_text(record) not in gate_texts]
    if not kept:
        raise CompressionError(
            f"{train}: all rows have texts of {dev} that are set aside for the gate; give other rows"
        )
    return SearchData(
        train=kept,
        unlabelled=kept_more,
        num_left_out=len(train_records) + len(more) - len(kept) - len(kept_more),
        search=build_examples(task, tokenizer, search_records),
        gate=build_examples(task, tokenizer, [dev_records[index] for index in gated]),
        search_records=search_records,
    )


def _read_inputs(task: Task, path: Path, columns: Mapping[str, str]) -> list[Record]:
    """Read rows that need no labels.

    Raises:
        DataError: A row has no input for the task.
    """
    records = read_records(path, columns)
    for record in records:
        task.inputs(record)
    return records


def _write_jsonl(path: Path, records: Sequence[Record]) -> None:
    with atomic_write(path) as stream:
        for record in records:
            try:
                stream.write(json.dumps(dict(record.fields), ensure_ascii=False) + "\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"{record.where}: cannot be copied as JSON: {error}") from None
