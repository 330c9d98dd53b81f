"""Models that pre-training starts from: which weights come from a base, and which are new."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_models import TaskModel, TrainingError, load_model, open_checkpoint, save_model
from bert_models.pretraining import InitialModel, PretrainSettings
from bert_models.pretraining.model import ReplacedTokenModel, generator_config
from bert_models.pretraining.model_source import LoadedModel
from bert_models.training.run_dir import GENERATOR_FOLDER
from bert_runtime.tasks import FillMask, ReplacedTokenDetection, SentenceEmbedding

MASK = FillMask(mask_token="[MASK]", mask_token_id=4)

RTD = PretrainSettings(objective="rtd", max_tokens=32)


def load(base: Path, settings: PretrainSettings = RTD) -> tuple[LoadedModel, ReplacedTokenModel]:
    found = InitialModel(base=base).load(settings)
    assert isinstance(found.model, ReplacedTokenModel)
    return found, found.model


@pytest.fixture
def electra(toy_config: Any, toy_vocab: Path, tmp_path: Path) -> Path:
    """An ELECTRA with its generator, as a run of pre-training leaves them."""
    torch.manual_seed(3)
    folder = tmp_path / "electra"
    folder.mkdir()
    ReplacedTokenModel(replace(toy_config, family="electra"), MASK).save(folder, toy_vocab, 64)
    return folder


def test_discriminator_and_generator_are_loaded_together(electra: Path) -> None:
    _, model = load(electra)
    for folder, task, ours in (
        (electra, ReplacedTokenDetection(), model.discriminator),
        (electra / GENERATOR_FOLDER, MASK, model.generator),
    ):
        saved = load_model(open_checkpoint(folder), task).state_dict()
        found = ours.state_dict()
        assert found.keys() == saved.keys()
        assert all(torch.equal(found[name], saved[name]) for name in saved)
    shared = model.discriminator.encoder.embeddings.token
    assert model.generator.encoder.embeddings.token is shared


def test_discriminator_without_generator_gets_a_new_one(electra: Path) -> None:
    before = load_model(open_checkpoint(electra / GENERATOR_FOLDER), MASK)
    (electra / GENERATOR_FOLDER).rename(electra.parent / "elsewhere")
    _, model = load(electra)
    assert model.generator.config == generator_config(model.config)
    query = "encoder.layers.0.attention.query.weight"
    assert not torch.equal(model.generator.state_dict()[query], before.state_dict()[query])


def test_generator_of_another_size_is_rejected(electra: Path, toy_config: Any, toy_vocab: Path) -> None:
    other = electra.parent / "other"
    other.mkdir()
    ReplacedTokenModel(replace(toy_config, family="electra", num_layers=1), MASK).save(other, toy_vocab, 64)
    (electra / GENERATOR_FOLDER).rename(electra.parent / "elsewhere")
    (other / GENERATOR_FOLDER).rename(electra / GENERATOR_FOLDER)
    with pytest.raises(
        TrainingError, match=r"generator: expected a generator with .*num_layers=2.*, found .*num_layers=1"
    ):
        load(electra)


def test_bert_encoder_becomes_a_discriminator(embedding_checkpoint: Path) -> None:
    found, model = load(embedding_checkpoint)
    assert (found.tokenizer_from, model.config.family) == (embedding_checkpoint, "electra")
    base = load_model(open_checkpoint(embedding_checkpoint), SentenceEmbedding(dimensions=32))
    ours = model.discriminator.encoder.state_dict()
    assert all(torch.equal(ours[name], weight) for name, weight in base.encoder.state_dict().items())
    ids = torch.tensor([[2, 10, 11, 12, 3]])
    mask, segments = torch.ones_like(ids), torch.zeros_like(ids)
    with torch.no_grad():
        expected = base.encoder(ids, mask, segments)
        assert torch.allclose(model.discriminator.eval().encoder(ids, mask, segments), expected, atol=1e-6)


def test_base_of_another_family_is_rejected(toy_config: Any, toy_vocab: Path, tmp_path: Path) -> None:
    model = TaskModel(replace(toy_config, family="distilbert", type_vocab_size=0), MASK)
    save_model(model, tmp_path, tokenizer_from=toy_vocab)
    with pytest.raises(TrainingError, match="distilbert has no head for replaced-token-detection, which rtd needs"):
        load(tmp_path)


def test_base_with_fewer_positions_is_rejected(electra: Path) -> None:
    with pytest.raises(TrainingError, match="expected at most 64 max_tokens, found 512"):
        load(electra, PretrainSettings(objective="rtd", max_tokens=512))


def test_initializer_range_scales_new_weights(toy_vocab: Path) -> None:
    source = InitialModel(family="bert", size="tiny", tokenizer=toy_vocab, initializer_range=0.1)
    model = source.load(PretrainSettings(objective="mlm")).model
    assert model.config.initializer_range == 0.1
    matrices = torch.cat([p.detach().flatten() for p in model.parameters() if p.ndim == 2])
    assert 0.09 < float(matrices.std()) < 0.11
    for wrong in ({"initializer_range": 0.0}, {"base": "b", "family": None, "size": None, "tokenizer": None}):
        with pytest.raises(TrainingError, match="expected an initializer_range above 0, and new weights"):
            replace(source, **wrong)


@pytest.mark.parametrize(
    "start", [{}, {"family": "bert"}, {"family": "bert", "size": "toy", "tokenizer": "t", "base": "b"}]
)
def test_incomplete_or_contradictory_sources_are_rejected(start: dict[str, str]) -> None:
    with pytest.raises(
        TrainingError, match="either a family, a size and a tokenizer to start from, or a base checkpoint"
    ):
        InitialModel(**start)
