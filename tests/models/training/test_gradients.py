"""Gradients of families whose attention reads positions: one step of training gives what it gives in transformers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bert_models import load_model, open_checkpoint
from bert_models.pretraining.model import mlm_metrics

from ..toy import inputs, save_reference
from ..toy_families import with_first_token
from ..toy_heads import VOCABULARY, difference, reference

FAMILIES_WITH_POSITIONS = ("modernbert", "deberta-v2", "nomic_bert", "gte", "mpnet")

TOLERANCE = 1e-4
"""Above that of outputs before the step: it adds the rounding of the gradients."""


def step(model: nn.Module, loss: Tensor) -> None:
    """Take one step of gradient descent, long enough to change outputs by far more than `TOLERANCE`."""
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


@pytest.mark.parametrize("family", FAMILIES_WITH_POSITIONS)
def test_step_of_fine_tuning_equals_that_of_transformers(family: str, tmp_path: Path) -> None:
    theirs = reference(family, "text-classification")
    source = open_checkpoint(save_reference(theirs, tmp_path))
    ours, before = load_model(source, source.task()).eval(), load_model(source, source.task()).eval()
    ids, attention, segments = inputs(3, "random", VOCABULARY)
    attention, labels = with_first_token(family, attention), torch.tensor([0, 3, 1])
    extra = {"token_type_ids": segments} if ours.config.uses_segment_ids else {}
    step(ours, nn.functional.cross_entropy(ours(ids, attention, segments), labels))
    step(theirs, nn.functional.cross_entropy(theirs(input_ids=ids, attention_mask=attention, **extra).logits, labels))
    assert difference(before, theirs) > 100 * TOLERANCE
    assert difference(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_step_of_pretraining_equals_that_of_transformers(
    family: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    theirs = reference(family, "fill-mask", max_position_embeddings=64)
    folder = save_reference(theirs, tmp_path)
    (folder / "tokenizer.json").write_bytes((classifier_checkpoint / "tokenizer.json").read_bytes())
    source = open_checkpoint(folder)
    ours, before = load_model(source, source.task()).eval(), load_model(source, source.task()).eval()
    ids, attention, segments = inputs(3, "full", VOCABULARY)
    labels = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3, ids, -100)
    measured, _ = mlm_metrics(ours.head, ours.encoder(ids, attention, segments), labels)
    step(ours, measured["mlm_loss"].mean)
    step(theirs, theirs(input_ids=ids, attention_mask=attention, labels=labels).loss)
    assert difference(before, theirs) > 100 * TOLERANCE
    assert difference(ours, theirs) <= TOLERANCE
