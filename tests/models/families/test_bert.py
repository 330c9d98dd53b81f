"""BERT compared with transformers: same checkpoint, same outputs, in both directions."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertConfig, BertForSequenceClassification, BertModel

from bert_models import TaskModel, load_model, open_checkpoint, save_model
from bert_runtime.tasks import SentenceEmbedding, TextClassification

from ..toy import BATCHES, MASKS, TOLERANCE, inputs, max_difference, randomize, save_reference, toy_config


def reference(activation: str = "gelu", **changes: object) -> BertForSequenceClassification:
    config = BertConfig(**toy_config(hidden_act=activation, num_labels=5, **changes))
    config.problem_type = "single_label_classification"
    model = BertForSequenceClassification(config).eval()
    randomize(model)
    return model


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_classifier_logits_equal_those_of_transformers(tmp_path: Path, activation: str, batch: int, mask: str) -> None:
    theirs = reference(activation)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task())
    assert max_difference(ours, theirs, batch, mask, "logits") <= TOLERANCE


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("mean", False), ("cls", True), ("cls", False)])
def test_embedding_is_the_pooled_and_normalized_hidden_state(
    tmp_path: Path, pooling: str, normalize: bool, batch: int, mask: str
) -> None:
    theirs = BertModel(BertConfig(**toy_config())).eval()
    randomize(theirs)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, SentenceEmbedding(dimensions=24, pooling=pooling, normalize=normalize))
    ids, attention, segments = inputs(batch, mask)
    with torch.no_grad():
        hidden = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
        found = ours(ids, attention, segments)
    vectors = [
        tokens[mask.bool()].mean(0) if pooling == "mean" else tokens[0]
        for tokens, mask in zip(hidden, attention, strict=True)
    ]
    expected = torch.stack([vector / vector.norm() if normalize else vector for vector in vectors])
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_our_checkpoint_loads_in_transformers(classifier_checkpoint: Path, tmp_path: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    ours = load_model(source, source.task())
    randomize(ours)
    save_model(ours, tmp_path, tokenizer_from=classifier_checkpoint)
    theirs, report = BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    task = source.task()
    assert isinstance(task, TextClassification)
    assert tuple(theirs.config.id2label[i] for i in range(len(task.labels))) == task.labels
    assert theirs.config.problem_type == "single_label_classification"
    assert max_difference(ours, theirs.eval(), 3, "random", "logits", source.config.vocab_size) <= TOLERANCE


def test_our_embedding_checkpoint_loads_in_transformers(embedding_checkpoint: Path) -> None:
    source = open_checkpoint(embedding_checkpoint)
    ours = load_model(source, source.task())
    theirs = BertModel.from_pretrained(embedding_checkpoint, add_pooling_layer=False).eval()
    ids, attention, segments = inputs(3, "random", source.config.vocab_size)
    with torch.no_grad():
        found = ours.encoder(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_segment_ids_default_to_zero(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    model = load_model(source, source.task())
    ids, attention, segments = inputs(2, "random", source.config.vocab_size)
    with torch.no_grad():
        assert torch.equal(model(ids, attention), model(ids, attention, torch.zeros_like(segments)))


def test_same_seed_gives_the_same_initial_weights(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(TaskModel(source.config, source.task()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    weight = states[0]["encoder.layers.0.feed_forward.up.weight"]
    assert float(weight.std()) == pytest.approx(source.config.initializer_range, rel=0.1)


@pytest.mark.pretrained
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
def test_pretrained_minilm_hidden_states_equal_those_of_transformers(
    pretrained_minilm: Path, batch: int, mask: str
) -> None:
    checkpoint = open_checkpoint(pretrained_minilm)
    ours = load_model(checkpoint, checkpoint.task())
    theirs = AutoModel.from_pretrained(pretrained_minilm).eval()
    ids, attention, segments = inputs(batch, mask, vocab_size=30522, tokens=77)
    with torch.no_grad():
        found = ours.encoder(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
    assert float((found - expected).abs().max()) <= TOLERANCE
