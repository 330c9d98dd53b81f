"""Heads beside the classifier's single label: the same numbers as transformers, and the same reading of config.json."""

from pathlib import Path

import pytest
import torch

from bert_models import CheckpointError, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import NextSentencePrediction, TextClassification

from .families import reference
from .toy import BATCHES, MASKS, TOLERANCE, inputs, save_reference


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    ("family", "architecture", "output"),
    [("bert", "ForNextSentencePrediction", "logits"), ("albert", "ForPreTraining", "sop_logits")],
)
def test_sentence_pair_head(family: str, architecture: str, output: str, batch: int, mask: str, tmp_path: Path) -> None:
    theirs = reference(family, architecture)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task())
    assert ours.task == NextSentencePrediction()
    ids, attention, segments = inputs(batch, mask)
    with torch.no_grad():
        found = ours(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments)[output]
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_family_without_the_head_names_those_it_has(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_reference(reference("distilbert", "Model"), tmp_path))
    with pytest.raises(
        CheckpointError, match="distilbert has no head for 'next-sentence-prediction'; it has heads for"
    ):
        checkpoint.task("next-sentence-prediction")


@pytest.mark.parametrize(
    ("problem_type", "labels", "expected"),
    [
        ("multi_label_classification", 3, "multi_label"),
        ("regression", 1, "regression"),
        (None, 1, "regression"),
        (None, 3, "single_label"),
    ],
)
def test_problem_type_is_read_as_transformers_does(
    problem_type: str | None, labels: int, expected: str, tmp_path: Path
) -> None:
    theirs = reference("bert", "ForSequenceClassification", num_labels=labels, problem_type=problem_type)
    task = open_checkpoint(save_reference(theirs, tmp_path)).task()
    assert isinstance(task, TextClassification)
    assert task.problem_type == expected
    assert len(task.labels) == labels


def test_thresholds_survive_saving(classifier_checkpoint: Path, tmp_path: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    labels = ("greeting", "farewell", "question")
    task = TextClassification(labels=labels, problem_type="multi_label", threshold=0.3, thresholds=(0.1, 0.2, 0.9))
    save_model(load_model(source, task), tmp_path, tokenizer_from=classifier_checkpoint)
    assert open_checkpoint(tmp_path).task() == task


def test_families_have_pair_heads_as_pre_trained() -> None:
    having = {name for name, family in FAMILIES.items() if "next-sentence-prediction" in family.head_weights}
    assert having == {"bert", "albert"}


def test_pre_trained_pair_head_is_kept_whatever_labels_the_config_names(tmp_path: Path) -> None:
    theirs = reference("bert", "ForNextSentencePrediction", id2label={0: "yes", 1: "no"}, label2id={"yes": 0, "no": 1})
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, NextSentencePrediction(), new_head=True)
    assert torch.equal(ours.head.output.weight, theirs.cls.seq_relationship.weight)
