"""Labelled files as batches of tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bert_models.errors import TrainingError
from bert_models.training.objectives import encode_targets
from bert_runtime.batching import length_sorted_batches
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, NextSentencePrediction, Task, TextClassification
from bert_runtime.tokenization import TextTokenizer, pad

__all__ = ["TRAINABLE", "Examples", "TensorBatch", "dev_loader", "label_task", "train_loader"]

_DEV_BATCH_TOKENS = 4096

TRAINABLE = (TextClassification.name, NextSentencePrediction.name)
"""Tasks that can be fine-tuned."""


class TensorBatch(NamedTuple):
    """One right-padded batch: int64 [B, S] three times, targets [B, …], and the rows' places in the file [B]."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor
    targets: Tensor
    rows: Tensor


class Examples(Dataset[int]):
    """A labelled file, tokenized. Items are row numbers; `collate` turns rows into a batch."""

    def __init__(self, task: Task, examples: Sequence[Example], tokenizer: TextTokenizer) -> None:
        self.task = task
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
        targets = encode_targets(self.task, [self.examples[row].target for row in rows])
        return TensorBatch(*(torch.from_numpy(array) for array in (*batch, targets, np.array(rows))))


def label_task(
    task: str,
    train: Sequence[Record],
    dev: Sequence[Record],
    known: Sequence[str] = (),
    problem_type: str = "single_label",
) -> Task:
    """The task with the labels of the training file, in the order of `known` where these are the same labels.

    Raises `DataError` naming all labels of the development file that training never shows.
    """
    if task == NextSentencePrediction.name:
        return NextSentencePrediction()
    if task != TextClassification.name:
        raise TrainingError(f"expected a task that can be trained ({', '.join(TRAINABLE)}), found {task!r}")
    if problem_type == "regression":
        return TextClassification(labels=("score",), problem_type=problem_type)

    def labels_of(record: Record) -> list[str]:
        return record.labels() if problem_type == "multi_label" else [record.label()]

    found = {label for record in train for label in labels_of(record)}
    strange = {label: record for record in reversed(dev) for label in labels_of(record) if label not in found}
    if strange:
        listed = ", ".join(f"{label!r} (line {record.line})" for label, record in sorted(strange.items()))
        raise DataError(f"{dev[0].path}: labels that {train[0].path} does not have: {listed}")
    if len(found) < 2:
        raise DataError(f"{train[0].path}: expected at least two different labels, found {', '.join(found) or 'none'}")
    numeric = all(label.isdecimal() for label in found)
    labels = tuple(known) if found == set(known) else tuple(sorted(found, key=int if numeric else None))
    return TextClassification(labels=labels, problem_type=problem_type)


def train_loader(examples: Examples, batch_size: int, seed: int) -> DataLoader[TensorBatch]:
    """Shuffled batches; the order of an epoch depends on `seed` and the epoch's number alone, so it can be resumed."""
    sampler: DistributedSampler[int] = DistributedSampler(examples, num_replicas=1, rank=0, shuffle=True, seed=seed)
    # The stubs take a loader to give the dataset's items; `collate` makes batches of these.
    return DataLoader(examples, batch_size, sampler=sampler, collate_fn=examples.collate)  # type: ignore[arg-type]


def dev_loader(examples: Examples) -> DataLoader[TensorBatch]:
    """The same length-sorted batches in every epoch; `TensorBatch.rows` says where each row belongs."""
    batches = list(length_sorted_batches([len(each) for each in examples.encodings], _DEV_BATCH_TOKENS))
    # The stubs take a loader to give the dataset's items; `collate` makes batches of these.
    return DataLoader(examples, batch_sampler=batches, collate_fn=examples.collate)  # type: ignore[arg-type]
