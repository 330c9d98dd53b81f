"""Every family compared with transformers: same checkpoint, same outputs, in both directions."""

from pathlib import Path

import pytest
import torch
import transformers

from bert_export.capture import capture
from bert_export.fusion import fuse
from bert_export.parity import check_parity
from bert_export.quantization import expected_projections, quantize
from bert_models import load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import SentenceEmbedding

from ...export.toy_models import graph_runner, probed_activations
from ..toy import BATCHES, MASKS, TOLERANCE, inputs, randomize, save_reference
from ..toy_families import CONFIGS, comparable, reference, with_first_token


def test_every_family_is_tested() -> None:
    assert CONFIGS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_those_of_transformers(family: str, batch: int, mask: str, tmp_path: Path) -> None:
    theirs = reference(family, "Model")
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task("sentence-embedding"))
    ids, attention, segments = inputs(batch, mask)
    if checkpoint.config.positions == "after_padding":  # position ids depend on the padding id, not on the mask
        ids = ids.where(attention.bool(), torch.tensor(checkpoint.config.pad_token_id))
    extra = {"token_type_ids": segments} if checkpoint.config.uses_segment_ids else {}
    with torch.no_grad():
        found = ours.encoder(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, **extra).last_hidden_state
    assert float((found - expected)[comparable(family, attention)].abs().max()) <= TOLERANCE


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_classifier_logits_equal_those_of_transformers(family: str, batch: int, mask: str, tmp_path: Path) -> None:
    theirs = reference(family, "ForSequenceClassification", num_labels=5)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task())
    ids, attention, segments = inputs(batch, mask)
    attention = with_first_token(family, attention)
    extra = {"token_type_ids": segments} if checkpoint.config.uses_segment_ids else {}
    with torch.no_grad():
        found = ours(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, **extra).logits
    assert float((found - expected).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_our_checkpoint_loads_in_transformers(family: str, tmp_path: Path, classifier_checkpoint: Path) -> None:
    theirs = reference(family, "ForSequenceClassification", num_labels=4)
    source = open_checkpoint(save_reference(theirs, tmp_path / "a"))
    ours = load_model(source, source.task())
    randomize(ours, seed=1)
    (tmp_path / "b").mkdir()
    save_model(ours, tmp_path / "b", tokenizer_from=classifier_checkpoint)
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "b", output_loading_info=True
    )
    assert type(theirs).__name__ == FAMILIES[family].architectures["text-classification"]
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert open_checkpoint(tmp_path / "b").config == source.config
    ids, attention, segments = inputs(3, "random")
    attention = with_first_token(family, attention)
    extra = {"token_type_ids": segments} if source.config.uses_segment_ids else {}
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids, attention_mask=attention, **extra).logits
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE


SAME_GRAPH = ("xlm-roberta", "camembert", "ernie")
"""Families with the graph of RoBERTa or BERT."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] if name in SAME_GRAPH else []) for name in FAMILIES]
)
@pytest.mark.parametrize("first_token_only", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_exports_with_every_fusion(family: str, first_token_only: bool, tmp_path: Path) -> None:
    source = open_checkpoint(save_reference(reference(family, "ForSequenceClassification", num_labels=4), tmp_path))
    task = source.task() if first_token_only else SentenceEmbedding(dimensions=24)
    model = load_model(source, task)
    graph = capture(model)
    fusions = fuse(graph, source.config, task)
    check_parity(model, graph_runner(graph, tmp_path / "fp32.onnx"), source.config.max_tokens)
    quantize(graph, expected_projections(source.config, fusions), probed_activations(model, graph))
    graph_runner(graph, tmp_path / "int8.onnx")
    names = [value.name for value in graph.graph.inputs]
    assert ("token_type_ids" in names) == source.config.uses_segment_ids


def test_shared_layers_are_stored_once_in_the_graph(tmp_path: Path) -> None:
    source = open_checkpoint(save_reference(reference("albert", "Model"), tmp_path))
    model = load_model(source, SentenceEmbedding(dimensions=24))
    graph = capture(model)
    fusions = fuse(graph, source.config, model.task)

    def matrices() -> int:
        return sum("layers" in str(name) and len(v.shape or ()) == 2 for name, v in graph.graph.initializers.items())

    assert matrices() == 2 * 4  # three layers in two groups of four matrices
    quantize(graph, expected_projections(source.config, fusions), probed_activations(model, graph))
    assert matrices() == 2 * 4
