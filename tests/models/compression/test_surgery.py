"""Models with fewer layers and feed-forward neurons: what is left computes what it did, and transformers loads it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bert_models import FAMILIES, EncoderConfig, TaskModel, load_model, open_checkpoint, save_model
from bert_models.compression import (
    is_savable,
    keep_layers,
    keep_neurons,
    layer_influence,
    most_important,
    neuron_importance,
)
from bert_models.errors import CompressionError
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training.data import TensorBatch
from bert_runtime.tasks import TextClassification

from ..toy import inputs, randomize
from ..toy_families import CONFIGS
from ..toy_families import reference as toy_reference

TASK = TextClassification(labels=("a", "b"))


def toy_model(config: EncoderConfig) -> TaskModel:
    model = TaskModel(config, TASK).eval()
    randomize(model)
    return model


def batch(vocab_size: int) -> TensorBatch:
    ids, mask, types = inputs(3, "random", vocab_size)
    return TensorBatch(ids, mask, types, torch.tensor([0, 1, 0]), torch.arange(3))


def loss(model: TaskModel, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets)


def test_kept_layers_compute_what_they_did(toy_config: EncoderConfig) -> None:
    config = replace(toy_config, num_layers=4)
    model = toy_model(config)
    student = keep_layers(model, [0, 2, 3])
    assert (student.config.num_layers, student.training) == (3, False)
    for part in ("attention", "feed_forward"):  # without output, a post-norm layer only repeats a LayerNorm
        for name in ("output", "down"):
            module = getattr(getattr(model.encoder.layers[1], part), name, None)
            if module is not None:
                torch.nn.init.zeros_(module.weight)
                torch.nn.init.zeros_(module.bias)
    model.encoder.layers[1].attention_norm = torch.nn.Identity()
    model.encoder.layers[1].feed_forward_norm = torch.nn.Identity()
    given = inputs(3, "random", config.vocab_size)
    torch.testing.assert_close(student(*given), model(*given))


@pytest.mark.parametrize("layers", [[], [1, 0], [0, 0], [0, 2], [-1, 1]])
def test_layers_that_are_not_there_are_refused(toy_config: EncoderConfig, layers: list[int]) -> None:
    with pytest.raises(CompressionError, match="expected ascending indices of 2 layers to keep"):
        keep_layers(toy_model(toy_config), layers)


def test_a_pre_norm_model_keeps_its_first_layer(toy_config: EncoderConfig) -> None:
    model = toy_model(replace(toy_config, family="modernbert", norm_first=True))
    with pytest.raises(CompressionError, match="the first layer of modernbert cannot be dropped"):
        keep_layers(model, [1])
    assert keep_layers(model, [0]).config.num_layers == 1


def test_dropping_neurons_without_effect_is_exact(toy_config: EncoderConfig) -> None:
    model = toy_model(toy_config)
    for layer in model.encoder.layers:
        torch.nn.init.zeros_(layer.feed_forward.down.weight[:, ::2])
    importance = neuron_importance(model, [batch(toy_config.vocab_size)], loss)
    assert all((block[::2] == 0).all() and (block[1::2] > 0).all() for block in importance)
    student = keep_neurons(model, most_important(importance, 32))
    assert student.config.intermediate_size == 32
    given = inputs(3, "random", toy_config.vocab_size)
    torch.testing.assert_close(student(*given), model(*given))


def test_neuron_importance_is_the_first_order_change_of_the_loss(toy_config: EncoderConfig) -> None:
    # float64: in float32 the rounding of two losses alone is 5 % of such a difference
    model, rows = toy_model(toy_config).double(), batch(toy_config.vocab_size)._replace(targets=torch.tensor([1]))
    one = TensorBatch(*(part[:1] for part in rows[:3]), rows.targets, rows.sequence_indices[:1])
    found = neuron_importance(model, [one], loss)
    before = loss(model, model(*one[:3]), one.targets)
    with torch.no_grad():  # a small part of the neuron's effect: that is what the gradient says
        share, block = 1e-3, model.encoder.layers[0].feed_forward.down.weight
        for neuron in (0, 5, 17):
            kept = block[:, neuron].clone()
            block[:, neuron] *= 1 - share
            change = (loss(model, model(*one[:3]), one.targets) - before).abs() / share
            block[:, neuron] = kept
            assert found[0][neuron].item() == pytest.approx(change.item(), rel=0.01)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("neurons", [[torch.arange(3)], [torch.arange(3), torch.arange(4)], [torch.arange(0)] * 2])
def test_uneven_cuts_are_refused(toy_config: EncoderConfig, neurons: list[torch.Tensor]) -> None:
    with pytest.raises(CompressionError, match="expected neurons of 2 feed-forward blocks"):
        keep_neurons(toy_model(toy_config), neurons)


def test_a_layer_that_changes_nothing_has_no_influence(toy_config: EncoderConfig) -> None:
    model = toy_model(replace(toy_config, num_layers=3))
    middle = model.encoder.layers[1]
    for module in (middle.attention.output, middle.feed_forward.down):
        torch.nn.init.zeros_(module.weight)
        torch.nn.init.zeros_(module.bias)
    middle.attention_norm = middle.feed_forward_norm = torch.nn.Identity()
    influence = layer_influence(model, [batch(toy_config.vocab_size)])
    assert influence[1] == pytest.approx(0, abs=1e-6)
    assert min(influence[0], influence[2]) > 0.01


@pytest.mark.parametrize("layers", [[0, 3, 6], [0, 1, 2], [0, 2, 3], [0]])
def test_any_layers_of_modernbert_can_be_saved(layers: list[int]) -> None:
    """Also those with global attention alone, which have no settings of local attention."""
    assert is_savable(FAMILIES["modernbert"].preset("tiny"), layers)


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"camembert", "xlm-roberta"}))
def test_transformers_loads_a_cut_model_of_every_family(family: str, toy_vocab: Path, tmp_path: Path) -> None:
    reference = toy_reference(family, "ForSequenceClassification")
    reference.save_pretrained(tmp_path / "whole")
    source = open_checkpoint(tmp_path / "whole")
    model = load_model(source, source.task("text-classification"))
    layers = [0, 2] if is_savable(source.config, [0, 2]) else [0, 1]
    cut = keep_layers(model, layers)
    cut = keep_neurons(cut, [torch.arange(0, 32) for _ in cut.encoder.layers])
    (tmp_path / "cut").mkdir()
    (tmp_path / "tokenizer").mkdir()
    read_tokenizer(toy_vocab, "bert").save(str(tmp_path / "tokenizer/tokenizer.json"))
    save_model(cut, tmp_path / "cut", tokenizer_from=tmp_path / "tokenizer")
    again = open_checkpoint(tmp_path / "cut")
    assert (again.config.num_layers, again.config.intermediate_size) == (2, 32)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "cut").eval()
    ids, mask, types = inputs(2, "full", 101)
    extra = {"token_type_ids": types} if source.config.uses_segment_ids else {}
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask, **extra).logits
        torch.testing.assert_close(cut(ids, mask, types), expected, atol=1e-4, rtol=1e-4)
