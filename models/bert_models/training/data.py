"""Labelled files as batches of tensors."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bert_models.errors import TrainingError
from bert_runtime.batching import length_sorted_batches
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Task, TextClassification
from bert_runtime.tokenization import TextTokenizer, pad

__all__ = ["Examples", "TensorBatch", "dev_loader", "label_task", "train_loader"]

_DEV_BATCH_TOKENS = 4096


class TensorBatch(NamedTuple):
    """One right-padded batch: int64 [B, S] three times, targets [B], and the rows' places in the file [B]."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    targets: Tensor
    rows: Tensor


class Examples(Dataset[int]):
    """A labelled file, tokenized. Items are row numbers; `collate` turns rows into a batch."""

    def __init__(self, examples: Sequence[Example], tokenizer: TextTokenizer) -> None:
        self.examples = examples
        self.encodings: list[Encoding] = tokenizer.encode([example.inputs[0] for example in examples])
        self.pad_token_id = tokenizer.pad_token_id

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, row: int) -> int:
        return row

    def collate(self, rows: Sequence[int]) -> TensorBatch:
        """The rows as one batch, as wide as the longest of them."""
        batch = pad([self.encodings[row] for row in rows], self.pad_token_id)
        targets = np.array([self.examples[row].target for row in rows], dtype=np.int64)
        return TensorBatch(*(torch.from_numpy(array) for array in (*batch, targets, np.array(rows))))


def label_task(task: str, train: Sequence[Record], dev: Sequence[Record], known: Sequence[str] = ()) -> Task:
    """The task with the labels of the training file, in the order of `known` where these are the same labels.

    Raises `DataError` naming all labels of the development file that training never shows.
    """
    if task != TextClassification.name:
        raise TrainingError(f"expected a task that can be trained ({TextClassification.name}), found {task!r}")
    found = {record.label() for record in train}
    strange = {record.label(): record for record in reversed(dev) if record.label() not in found}
    if strange:
        listed = ", ".join(f"{label!r} (line {record.line})" for label, record in sorted(strange.items()))
        raise DataError(f"{dev[0].path}: labels that {train[0].path} does not have: {listed}")
    if len(found) < 2:
        raise DataError(f"{train[0].path}: expected at least two different labels, found only {found.pop()!r}")
    numeric = all(label.isdecimal() for label in found)
    labels = tuple(known) if found == set(known) else tuple(sorted(found, key=int if numeric else None))
    return TextClassification(labels=labels)


def train_loader(examples: Examples, batch_size: int, seed: int) -> DataLoader[TensorBatch]:
    """Shuffled batches; the order of an epoch depends on `seed` and the epoch's number alone, so it can be resumed."""
    sampler: DistributedSampler[int] = DistributedSampler(examples, num_replicas=1, rank=0, shuffle=True, seed=seed)
    return DataLoader(examples, batch_size, sampler=sampler, collate_fn=examples.collate)  # type: ignore[arg-type]


class _SortedBatches:
    """The same length-sorted batches in every epoch."""

    def __init__(self, examples: Examples) -> None:
        lengths = [len(encoding) for encoding in examples.encodings]
        self.batches = list(length_sorted_batches(lengths, _DEV_BATCH_TOKENS))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def dev_loader(examples: Examples) -> DataLoader[TensorBatch]:
    """Length-sorted batches; `TensorBatch.rows` says where each row belongs."""
    return DataLoader(examples, batch_sampler=_SortedBatches(examples), collate_fn=examples.collate)  # type: ignore[arg-type]
