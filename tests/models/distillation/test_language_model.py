"""Distillation of masked language models on a corpus."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bert_models import EncoderConfig, TaskModel, TrainingError, open_checkpoint
from bert_models.corpus import TextFiles
from bert_models.distillation import DistillationSettings, distill_language_model
from bert_models.distillation.language_model import DistilledLanguageModel
from bert_models.distillation.layers import student_from_layers
from bert_models.pretraining import PretrainSettings

from ..toy import inputs, randomize
from .teachers import MASK, save_checkpoint


@pytest.fixture
def corpus(tmp_path: Path) -> TextFiles:
    sentences = ["my card is lost", "help me please", "the train was late", "good morning", "see you", "why not"]
    lines = ["\n".join(sentences[i % 6 :] + sentences[: i % 6]) for i in range(30)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(lines), encoding="utf-8")
    return TextFiles([tmp_path / "corpus.txt"])


MASKED = PretrainSettings(
    objective="mlm", steps=40, batch_size=8, lr=3e-3, max_tokens=24, dev_fraction=0.2, eval_every=20, precision="fp32"
)


def test_language_model_learns_from_its_teacher(
    toy_vocab: Path, toy_config: EncoderConfig, corpus: TextFiles, tmp_path: Path
) -> None:
    teacher = save_checkpoint(tmp_path / "teacher", toy_vocab, replace(toy_config, num_layers=4), MASK)
    weights = DistillationSettings(
        hard_weight=0.0, hidden_weight=1.0, attention_weight=1.0
    )  # the untrained teacher contradicts the corpus
    report = distill_language_model(teacher, "2", corpus, tmp_path / "out", MASKED, weights, cache=tmp_path / "cache")
    first, last = report["measured"][0], report["measured"][-1]
    for name in ("soft_loss", "hidden_loss"):
        assert last[name] < first[name], name
    assert 0 < last["attention_loss"] < 0.1
    assert report["start"]["teacher"]["sha256"] == open_checkpoint(teacher).sha256()
    reference, loading = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert reference.config.num_hidden_layers == 2
    assert not any(loading.values())
    with pytest.raises(
        TrainingError, match="expected the objective mlm for a distillation on a corpus, found mlm\\+nsp"
    ):
        distill_language_model(teacher, "2", corpus, tmp_path / "no", replace(MASKED, objective="mlm+nsp"))


def test_teacher_that_reads_fewer_tokens_is_refused(
    toy_vocab: Path, toy_config: EncoderConfig, corpus: TextFiles, tmp_path: Path
) -> None:
    teacher = save_checkpoint(tmp_path / "teacher", toy_vocab, replace(toy_config, max_positions=16), MASK)
    student = save_checkpoint(tmp_path / "student", toy_vocab, toy_config, MASK)
    with pytest.raises(TrainingError, match="the teacher's 16 tokens for the student, found 24; give --max-tokens 16"):
        distill_language_model(teacher, str(student), corpus, tmp_path / "out", MASKED, cache=tmp_path / "cache")


def test_copy_of_the_teacher_has_no_loss_against_it(toy_config: EncoderConfig) -> None:
    teacher = TaskModel(toy_config, MASK)
    randomize(teacher)
    model = DistilledLanguageModel(student_from_layers(teacher, toy_config.num_layers), teacher, DistillationSettings(
        soft_weight=1.0, hidden_weight=1.0, attention_weight=1.0
    )).eval()  # fmt: skip
    ids, mask, segments = inputs(3, "random", toy_config.vocab_size)
    labels = torch.where(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3, ids, -100)
    with torch.no_grad():
        measured = model.measure(ids, mask, segments, labels, torch.zeros(3, dtype=torch.int64))
    for name in ("soft_loss", "hidden_loss", "attention_loss"):
        assert float(measured[name].total / measured[name].num_items) == pytest.approx(0.0, abs=1e-5)
    assert float(model.loss(measured)) == pytest.approx(
        float(measured["mlm_loss"].total / measured["mlm_loss"].num_items), abs=1e-4
    )
    owned = {name for name, _ in model.named_parameters()}
    assert owned == {
        f"model.{name}" for name, _ in model.model.named_parameters()
    }  # the teacher has no trained parameter


def test_copied_student_shares_the_teacher(toy_config: EncoderConfig) -> None:
    """With sharded parameters, rank 0 keeps a copy of the student to gather them in."""
    teacher = TaskModel(toy_config, MASK)
    settings = DistillationSettings(hidden_weight=1.0, attention_weight=1.0)
    model = DistilledLanguageModel(student_from_layers(teacher, 1), teacher, settings)
    ids, mask, segments = inputs(2, "full", toy_config.vocab_size)
    model.measure(ids, mask, segments, ids, ids[:, 0])
    copied = copy.deepcopy(model)
    assert copied.teacher is model.teacher
    assert copied.model is not model.model
