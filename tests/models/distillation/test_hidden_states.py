"""A teacher's hidden states are computed in one epoch, for all students."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bert_models.distillation import DistillationSettings, distill
from bert_models.distillation.hidden_states import HiddenStates
from bert_models.distillation.teacher import Teacher
from bert_models.training.data import TensorBatch

from .teachers import ROWS
from .test_run import SETTINGS, write


def batch_of(lengths: Sequence[int], indices: Sequence[int]) -> TensorBatch:
    positions = torch.arange(max(lengths)).expand(len(lengths), -1)
    mask = (positions < torch.tensor(lengths)[:, None]).long()
    return TensorBatch(mask, mask, mask, torch.zeros(len(lengths)), torch.tensor(indices))


def hidden_of(batch: TensorBatch) -> list[Tensor]:
    """Return hidden states of three layers that name their layer, sequence and token."""
    places = torch.stack(
        torch.meshgrid(batch.sequence_indices, torch.arange(batch.input_ids.shape[1]), indexing="ij"), -1
    )
    return [torch.cat([places, torch.full_like(places, layer)], -1).float() for layer in range(3)]


def refuse(batch: TensorBatch) -> list[Tensor]:
    raise AssertionError("the teacher runs")


def test_sequences_are_found_in_other_batches() -> None:
    states = HiddenStates()
    for batch in (batch_of([3, 5], [7, 1]), batch_of([4], [2])):
        states.read(batch, (0, 2), hidden_of)
    batch = batch_of([4, 3], [2, 7])
    found = states.read(batch, (0, 2), refuse)
    expected = hidden_of(batch)
    real = batch.attention_mask.bool()
    assert torch.equal(found[0][real].float(), expected[0][real])
    assert torch.equal(found[1][real].float(), expected[2][real])
    once_s = states.once_s
    assert once_s > 0
    states.read(batch, (0, 2), refuse)
    assert states.once_s == once_s


def test_what_exceeds_the_memory_is_computed_again_and_what_was_kept_stays() -> None:
    first, batch = batch_of([2], [7]), batch_of([3, 5], [0, 1])
    states = HiddenStates(max_bytes=60)  # a token has four numbers of two bytes
    states.read(first, (1,), hidden_of)
    once_s = states.once_s
    calls: list[list[int]] = []

    def compute(part: TensorBatch) -> list[Tensor]:
        calls.append(part.sequence_indices.tolist())
        return hidden_of(part)

    real = batch.attention_mask.bool()
    for _ in range(3):
        assert torch.equal(states.read(batch, (1,), compute)[0][real].float(), hidden_of(batch)[1][real])
    assert calls == [[0, 1], [1], [1]]
    assert states.once_s == once_s  # later epochs take that time, too
    assert sum(kept.nbytes for kept in states._kept.values()) <= 60
    assert torch.equal(states.read(first, (1,), refuse)[0].float(), hidden_of(first)[1])


@pytest.mark.parametrize("teacher", ["single_label"], indirect=True)
def test_the_teacher_runs_in_the_first_epoch_of_the_first_student(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS["single_label"]
    train, dev = write(tmp_path / "train.jsonl", rows, 6), write(tmp_path / "dev.jsonl", rows)
    calls, states, run = [], HiddenStates(), Teacher.hidden

    def count(self: Teacher, *given: Tensor) -> Tensor:
        calls.append(len(given[0]))
        return run(self, *given)

    monkeypatch.setattr(Teacher, "hidden", count)
    weights = DistillationSettings(soft_weight=0.0, hard_weight=0.0, hidden_weight=1.0)
    for name in ("first", "second"):
        report = distill(teacher, "2", train, dev, tmp_path / name, SETTINGS, weights, hidden_states=states)
        assert report["epochs"][-1]["train_loss"] < 0.7 * report["epochs"][0]["train_loss"]
        assert sum(calls) == 6 * len(rows)
