"""The Lightning module of pre-training: what an optimizer step of several batches learns."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_models import EncoderConfig, TaskModel
from bert_models.distillation.language_model import DistilledLanguageModel
from bert_models.distillation.settings import DistillationSettings
from bert_models.dropout import set_dropout
from bert_models.pretraining import PretrainingBatches, PretrainingVocabulary, PretrainSettings
from bert_models.pretraining import model as models
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel, ReplacedTokenModel
from bert_models.pretraining.module import EpochLoader, Pretraining
from bert_runtime.tasks import FillMask

from ..toy_corpus import random_documents, toy_cache, toy_tokenizer

MASK = FillMask(mask_token="[MASK]", mask_token_id=4)

NUM_PARTS = 4

KINDS = ("mlm", "mlm+nsp", "rtd", "distilled")


class _Unlogged(Pretraining):
    """Runs without a trainer, which shows losses."""

    def show_loss(self, loss: torch.Tensor) -> float:
        return loss.item()

    def lr_factor(self, step: int) -> float:
        return 1.0


Build = Callable[[str, int], _Unlogged]


@pytest.fixture
def build(toy_config: EncoderConfig, toy_vocab: Path, tmp_path: Path) -> Build:
    cache = toy_cache(tmp_path, toy_vocab, random_documents(30, 20))
    vocabulary = PretrainingVocabulary.from_tokenizer(toy_tokenizer(toy_vocab))

    def module(kind: str, num_parts: int) -> _Unlogged:
        """Return a module with the same weights and sequences for any number of batches in a step of 12 sequences."""
        objective = "mlm" if kind == "distilled" else kind
        settings = PretrainSettings(
            objective=objective, batch_size=12 // num_parts, gradient_accumulation_steps=num_parts, max_tokens=32
        )
        batches = PretrainingBatches(cache, np.arange(cache.num_documents), vocabulary, settings.batch_settings())
        torch.manual_seed(0)
        model: PretrainingModel = MaskedLanguageModel(toy_config, MASK, pairs="+" in objective)
        if kind == "rtd":
            model = ReplacedTokenModel(replace(toy_config, family="electra"), MASK)
        elif kind == "distilled":
            weights = DistillationSettings(soft_weight=1, hard_weight=1, hidden_weight=1, attention_weight=1)
            model = DistilledLanguageModel(TaskModel(toy_config, MASK), TaskModel(toy_config, MASK).eval(), weights)
        set_dropout(model, 0.0)
        return _Unlogged(model, batches, batches, settings, "fp32", {})

    return module


@pytest.mark.parametrize("kind", KINDS)
def test_accumulated_batches_have_the_gradient_of_one_joint_batch(
    kind: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches have different numbers of tokens, of which different numbers are predicted."""
    monkeypatch.setattr(models, "sample", lambda logits: logits.argmax(dim=-1))
    gradients, logged = [], []
    for num_parts in (1, NUM_PARTS):
        module = build(kind, num_parts)
        batches = list(islice(EpochLoader(module.train_batches, num_parts), num_parts))
        for index, batch in enumerate(batches):
            (module.training_step(batch, index) / num_parts).backward()  # as Lightning divides it
        module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
        gradients.append([parameter.grad for parameter in module.parameters()])
        logged.append(module.rows[0])
    assert len({int((batch.labels != -100).sum()) for batch in batches}) > 1
    assert logged[1] == pytest.approx(logged[0], rel=1e-5)
    for part, whole in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)


def test_evaluations_of_long_held_out_documents_read_a_part(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    module = build("mlm", 1)
    assert len(module.val_dataloader()) == len(module.dev_batches) > 3
    num_tokens = module.dev_batches.cache.document_tokens[module.dev_batches.documents].sum()
    monkeypatch.setattr("bert_models.pretraining.module.MAX_DEV_TOKENS", num_tokens / 2)
    module = build("mlm", 1)
    assert len(module.val_dataloader()) == -(-len(module.dev_batches) // 2)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_counted_before_a_batch_is_computed(kind: str, build: Build) -> None:
    module = build(kind, 1)
    batch = module.train_batches[0]
    zeros = torch.zeros(len(batch.input_ids), dtype=torch.int64)
    measured = module.model.measure(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, zeros)
    losses = {name: int(metric.num_items) for name, metric in measured.items() if name.endswith("_loss")}
    counted = batch.num_items()
    assert losses == {name: int(counted[name]) for name in losses}
