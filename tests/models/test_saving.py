"""Saved heads and settings: transformers loads them, and we read them back unchanged."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bert_models import CheckpointError, load_model, open_checkpoint, save_model
from bert_models.families import FAMILIES
from bert_runtime.tasks import (
    FillMask,
    NextSentencePrediction,
    QuestionAnswering,
    ReplacedTokenDetection,
    SentenceEmbedding,
    Task,
    TextClassification,
    TokenClassification,
)

from .toy import TOLERANCE, randomize
from .toy_heads import BIO, FILL_MASK, HEADS, VOCABULARY, Saved, assert_survives, difference, save


@pytest.mark.parametrize(("family", "task"), HEADS)
def test_saved_checkpoint_loads_in_transformers(
    saved: Saved, family: str, task: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, task)
    ours = load_model(source, source.task(task))
    randomize(ours, seed=1)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    architecture = FAMILIES[family].architectures[task]
    assert json.loads((folder / "config.json").read_text())["architectures"] == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    missing = set(report["missing_keys"])
    if architecture == "AlbertForPreTraining":  # this class has a masked-language-model head, too
        missing = {key for key in missing if not key.startswith("predictions.")}
    assert not missing
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert difference(ours, theirs.eval()) <= TOLERANCE
    assert_survives(ours, folder)


@pytest.mark.parametrize("family", FILL_MASK)
def test_output_matrix_is_saved_once_and_tied(
    saved: Saved, family: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, source.task())
    assert ours.head.tokens is ours.encoder.embeddings.token
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    width = source.config.embedding_width
    shapes = [tuple(tensor.shape) for tensor in load_file(folder / "model.safetensors").values()]
    assert shapes.count((VOCABULARY, width)) == 1
    theirs = getattr(transformers, FAMILIES[family].architectures["fill-mask"]).from_pretrained(folder)
    assert theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("roberta", TokenClassification(labels=BIO, aggregation="first")),
        ("bert", TokenClassification(labels=BIO, aggregation="max", bio=True)),
        ("distilbert", TokenClassification(labels=BIO, crf=True, bio=True)),
        ("bert", QuestionAnswering(no_answer=True, no_answer_threshold=-1.5, max_answer_tokens=9, n_best=7, top_k=3)),
        ("electra", ReplacedTokenDetection(threshold=0.2)),
        ("bert", FillMask(mask_token="[MASK]", mask_token_id=4, top_k=3, candidates=("good", "bad"))),
        ("albert", NextSentencePrediction()),
        ("bert", SentenceEmbedding(dimensions=24, pooling="attention")),
        (
            "electra",
            SentenceEmbedding(
                dimensions=5, pooling="attention", dense_sizes=(7, 5), dense_activations=("tanh", "identity")
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_settings_survive_saving(
    saved: Saved, family: str, task: Task, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved(family, "fill-mask")
    ours = load_model(source, task, new_head=True)
    randomize(ours)
    assert_survives(ours, save(ours, tmp_path / "saved", classifier_checkpoint))


def test_thresholds_survive_saving(classifier_checkpoint: Path, tmp_path: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    labels = ("greeting", "farewell", "question")
    task = TextClassification(labels=labels, problem_type="multi_label", threshold=0.3, thresholds=(0.1, 0.2, 0.9))
    save_model(load_model(source, task), tmp_path, tokenizer_from=classifier_checkpoint)
    assert open_checkpoint(tmp_path).task() == task


def test_crf_transitions_are_the_only_key_unknown_to_transformers(
    saved: Saved, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved("bert", "token-classification")
    task = TokenClassification(labels=BIO, crf=True, bio=True)
    ours = load_model(source, task, new_head=True)
    randomize(ours)
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    theirs, report = transformers.BertForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert set(report["unexpected_keys"]) == {"crf.transitions"}
    assert difference(ours, theirs.eval()) <= TOLERANCE
    assert theirs.config.id2label == dict(enumerate(BIO))
    again = load_model(open_checkpoint(folder), task)
    kept = torch.tensor(again.runtime_task().to_dict()["transitions"])
    torch.testing.assert_close(kept, ours.head.crf.transitions.detach(), rtol=1e-7, atol=0)


def test_crf_can_be_added_to_and_dropped_from_a_checkpoint(
    saved: Saved, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    _, source = saved("bert", "token-classification")
    labels = source.task().to_dict()["labels"]
    plain, with_crf = TokenClassification(labels=labels), TokenClassification(labels=labels, crf=True)
    with pytest.raises(CheckpointError, match=r"1 missing: crf\.transitions"):
        load_model(source, with_crf)
    ours = load_model(source, with_crf, new_head=True)  # the labels are the same, so the projection is kept
    assert torch.equal(ours.head.output.weight, load_model(source, plain).head.output.weight)
    assert not ours.head.crf.transitions.any()
    folder = save(ours, tmp_path / "saved", classifier_checkpoint)
    assert load_model(open_checkpoint(folder), plain).runtime_task() == plain


def test_new_labels_replace_projection_and_crf(saved: Saved, tmp_path: Path, classifier_checkpoint: Path) -> None:
    _, source = saved("bert", "token-classification")
    old = load_model(source, TokenClassification(labels=BIO, crf=True), new_head=True)
    randomize(old)
    folder = save(old, tmp_path / "saved", classifier_checkpoint)
    renamed = TokenClassification(labels=("O", *(label.lower() for label in BIO[1:])), crf=True)
    ours = load_model(open_checkpoint(folder), renamed, new_head=True)
    assert not ours.head.crf.transitions.any()
    assert not torch.equal(ours.head.output.weight, old.head.output.weight)
    assert torch.equal(ours.encoder.layers[2].feed_forward.down.weight, old.encoder.layers[2].feed_forward.down.weight)
