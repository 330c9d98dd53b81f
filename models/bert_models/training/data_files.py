"""The labelled files of a run, and their rows."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_models.errors import TrainingError
from bert_models.training.dev_split import LabelReader, split_rows
from bert_models.training.settings import TrainSettings
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.records import Record, read_records

__all__ = ["DataFiles", "DataRows"]


class DataRows(NamedTuple):
    """The rows that a run trains on, and those that it selects the best epoch on."""

    train: list[Record]
    dev: list[Record]
    split: dict[str, Any] | None
    """Describes how the dev rows were held out of the training file; `None` if they have a file of their own."""


@dataclass(frozen=True)
class DataFiles:
    """A training file and maybe a dev file, and the names of their columns by field, see `read_records`."""

    train: str | Path
    dev: str | Path | None
    columns: Mapping[str, str]
    find_label_reader: Callable[[], LabelReader | None] = lambda: None
    """Returns the reader of the labels that a split is stratified by, if the task has any; opens checkpoints."""

    @property
    def dev_name(self) -> str:
        """The dev rows in messages."""
        return f"the dev set of {self.train}" if self.dev is None else str(self.dev)

    def read(self, settings: TrainSettings) -> DataRows:
        """Return the rows to train on and the dev rows, which are held out of the training file if there is no other.

        Raises:
            TrainingError: there is a dev file, and a fraction to hold out.
            DataError: a file or a row cannot be read, or no dev set can be held out.
        """
        if self.dev is not None and settings.dev_fraction is not None:
            raise TrainingError("expected a dev file or a dev_share (dev_fraction in Python), found both; drop one")
        train = read_records(self.train, self.columns)
        if self.dev is not None:
            return DataRows(train, read_records(self.dev, self.columns), None)
        reader = self.find_label_reader()
        kept, held = split_rows(train, settings.dev_fraction, settings.seed, reader)
        digest = hashlib.sha256(np.array(held, dtype="<i8").tobytes()).hexdigest()
        split = {"rows": len(held), "of": len(train), "stratified": reader is not None, "seed": settings.seed}
        return DataRows([train[i] for i in kept], [train[i] for i in held], {**split, "sha256 of the rows": digest})

    def identity(self, rows: DataRows) -> dict[str, Any]:
        """Return what must match for a run to be resumed: the contents of the files, not their paths, and the split."""
        hashes = {
            f"sha256 of the {name} file": None if file is None else sha256_file(Path(file))
            for name, file in (("train", self.train), ("dev", self.dev))
        }
        return {**hashes, "columns": dict(self.columns), "dev_split": rows.split}

    def describe(self) -> dict[str, Any]:
        """Return the entry of the report."""
        dev = None if self.dev is None else str(self.dev)
        return {"train": str(self.train), "dev": dev, "columns": dict(self.columns)}
