"""Items, batches and samplers of a labelled file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_models import open_checkpoint
from bert_models.training.data import ExampleDataset, LengthGroupedSampler, dev_loader, train_loader
from bert_runtime.numerics import FloatArray
from bert_runtime.records import Record
from bert_runtime.tasks import (
    Reranking,
    TextClassification,
    stack_single_window,
)

WORDS = ["my", "card", "is", "lost", "at", "the", "bank", "and", "where", "can", "i", "see", "a", "good", "film"]

TASK = TextClassification(labels=("x", "y"))


@pytest.fixture(scope="module")
def examples(classifier_checkpoint: Path) -> ExampleDataset:
    """40 texts of 1 to 15 words."""
    rows = [
        Record({"text": " ".join(WORDS[: 1 + 7 * i % 15]), "label": "xy"[i % 2]}, Path("x.jsonl"), i + 1)
        for i in range(40)
    ]
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer()
    return ExampleDataset(TASK, [TASK.example(row) for row in rows], tokenizer)


def test_every_single_text_is_one_item(examples: ExampleDataset) -> None:
    assert len(examples) == 40
    assert examples.items == [(i,) for i in range(40)]
    assert [int(target) for target in examples.targets] == [0, 1] * 20


def test_outputs_are_in_file_order_regardless_of_batches(examples: ExampleDataset) -> None:
    arrays: dict[int, FloatArray] = {}
    for batch in dev_loader(examples):
        assert not arrays.keys() & set(batch.sequence_indices.tolist())
        arrays |= examples.split(
            batch, torch.stack([batch.sequence_indices.float(), batch.input_ids[:, 1].float()], dim=1)
        )
    found = examples.outputs(arrays)
    expected = [[i, encoding.ids[1]] for i, encoding in enumerate(examples.encodings)]
    assert stack_single_window(found).tolist() == expected
    assert [output.input for output in found] == [example.inputs[0] for example in examples.examples]


def test_long_documents_are_evaluated_in_windows_and_trained_on_truncated(classifier_checkpoint: Path) -> None:
    """The first document is found by its end, which only its last window has."""
    task, tokenizer = Reranking(), open_checkpoint(classifier_checkpoint).text_tokenizer(16)
    row = {"query": "where is it", "documents": ["the film " * 20 + "bank", "good"], "scores": [1, 0]}
    given = [task.example(Record(row, Path("x.jsonl"), 1))]
    assert ExampleDataset(task, given, tokenizer).items == [(0, 1)]
    truncating = replace(task, long_documents="truncate")
    assert ExampleDataset(truncating, given, tokenizer, evaluated=True).items == [(0, 1)]
    dev, (bank,) = ExampleDataset(task, given, tokenizer, evaluated=True), tokenizer.token_ids("bank")
    assert all(len(encoding) <= 16 for encoding in dev.encodings)
    arrays: dict[int, FloatArray] = {}
    for batch in dev_loader(dev):
        arrays |= dev.split(batch, (batch.input_ids == bank).any(dim=1, keepdim=True).float())
    assert len(arrays) == len(dev) == len(dev.encodings) > 4
    assert task.score(dev.outputs(arrays), given)["ndcg_at_10"] == 1


def test_order_depends_on_seed_and_epoch_only(examples: ExampleDataset) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        loader = train_loader(examples, 8, seed)
        loader.batch_sampler.sampler.set_epoch(epoch)
        return [int(row) for batch in loader for row in batch.sequence_indices]

    assert sorted(order(0, 0)) == list(range(40))
    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_dev_batches_hold_every_sequence_once(examples: ExampleDataset) -> None:
    batches = list(dev_loader(examples))
    rows = torch.cat([batch.sequence_indices for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    assert sorted(rows.tolist()) == list(range(40))
    assert [int(t) for t in targets] == [int(examples.examples[int(row)].target) for row in rows]


def order(examples: ExampleDataset, seed: int, epoch: int, batch_size: int = 6) -> list[list[int]]:
    loader = train_loader(examples, batch_size, seed, sort_by_length=True)
    loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    return [batch.sequence_indices.tolist() for batch in loader]


def test_length_grouped_batches_hold_every_item_once(examples: ExampleDataset) -> None:
    batches = order(examples, 0, 0)
    assert sorted(row for batch in batches for row in batch) == list(range(40))
    assert [len(batch) for batch in batches] == [6] * 6 + [4]
    assert order(examples, 0, 0) == batches
    assert order(examples, 0, 1) != batches
    assert order(examples, 1, 0) != batches
    assert order(examples, 0, 0, batch_size=64) != order(examples, 0, 1, batch_size=64)  # fewer items than a batch


def test_length_grouped_batches_have_less_padding(examples: ExampleDataset) -> None:
    def tokens(sort: bool) -> int:
        return sum(batch.input_ids.numel() for batch in train_loader(examples, 6, 0, sort_by_length=sort))

    real = sum(examples.lengths())
    assert tokens(True) - real < 0.5 * (tokens(False) - real)


def test_length_grouped_batches_are_shuffled() -> None:
    """An epoch that goes from short to long, or always the same way, would be a curriculum."""
    sampler = LengthGroupedSampler(range(1000), batch_size=10, seed=0)
    firsts = np.array(list(sampler)).reshape(-1, 10).mean(axis=1)
    assert abs(np.corrcoef(firsts, np.arange(100))[0, 1]) < 0.3
