"""Pre-training models: which tokens are scored, which count as replaced, and which weights are shared."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from bert_models.heads import MaskedLmHead
from bert_models.pretraining import model as models
from bert_models.pretraining.model import MaskedLanguageModel, ReplacedTokenModel, generator_config
from bert_runtime.tasks import FillMask

from ..toy import inputs

MASK = FillMask(mask_token="[MASK]", mask_token_id=4)


def test_sample_equal_to_the_original_is_not_replaced(toy_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(toy_config, family="electra")
    model = ReplacedTokenModel(config, MASK).eval()
    original = torch.tensor([[2, 10, 11, 12, 13, 3, 0]])
    masked = torch.tensor([[2, 4, 11, 4, 13, 3, 0]])
    labels = torch.tensor([[-100, 10, -100, 12, -100, -100, -100]])
    attention = (original != 0).long()
    monkeypatch.setattr(models, "sample", lambda logits: torch.tensor([10, 40]))
    measured = model.measure(masked, attention, torch.zeros_like(masked), labels, torch.zeros(1, dtype=torch.int64))
    assert (int(measured["replaced_share"].total), int(measured["replaced_share"].num_items)) == (1, 6)
    corrupted = torch.tensor([[2, 10, 11, 40, 13, 3, 0]])
    logits = model.discriminator(corrupted, attention, torch.zeros_like(masked))[0, :6]
    truth = torch.tensor([0, 0, 0, 1, 0, 0]).float()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    assert measured["rtd_loss"].total.item() == pytest.approx(expected.item())
    loss = model.loss(measured)
    parts = measured["mlm_loss"].total / 2 + 50 * measured["rtd_loss"].total / 6
    assert loss.item() == pytest.approx(parts.item())


def test_generator_and_discriminator_share_their_embeddings(toy_config: Any) -> None:
    model = ReplacedTokenModel(replace(toy_config, family="electra"), MASK)
    head = model.generator.head
    assert isinstance(head, MaskedLmHead)
    assert head.tokens.weight is model.discriminator.encoder.embeddings.token.weight
    assert model.generator.encoder.embeddings.position is model.discriminator.encoder.embeddings.position
    assert generator_config(toy_config).embedding_size == toy_config.hidden_size


def test_head_scores_predicted_tokens_only(toy_config: Any) -> None:
    model = MaskedLanguageModel(toy_config, MASK, pairs=True).eval()
    ids, attention, segments = inputs(3, "full", toy_config.vocab_size)
    labels = torch.full_like(ids, -100)
    labels[:, 3:6] = ids[:, 3:6]
    measured = model.measure(ids, attention, segments, labels, torch.tensor([0, 1, 0]))
    logits = model.model(ids, attention, segments)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert measured["mlm_loss"].total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(measured["mlm_loss"].num_items) == 9
    assert int(measured["sentence_loss"].num_items) == 3
