"""Without dropout, the training loop has the same losses on our models and on transformers' with the same weights."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_bench.experiments.rerank_training import ROW_KINDS
from bert_bench.experiments.transformers_fine_tuning import TransformersTaskModel, labelled_examples
from bert_bench.experiments.transformers_pretraining import CollatedBatches, TransformersPretraining
from bert_models import EncoderConfig, TaskModel, load_model, open_checkpoint, save_model
from bert_models.crf import IGNORE_INDEX
from bert_models.pretraining import PretrainingBatches, PretrainingVocabulary, PretrainSettings
from bert_models.pretraining.loop import fit as fit_pretraining
from bert_models.pretraining.model import MaskedLanguageModel, PretrainingModel
from bert_models.pretraining.module import Pretraining
from bert_models.training import TrainSettings
from bert_models.training.data import ExampleDataset
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision
from bert_models.training.relevance import relevance_examples
from bert_runtime.records import Record
from bert_runtime.tasks import FillMask, Reranking, TextClassification, TokenClassification

from ..toy_corpus import random_documents, toy_cache, toy_tokenizer
from ..toy_families import reference

STEPS, TOLERANCE = 20, 1e-4

FP32 = ChosenPrecision("fp32", {})

LABELLED = {
    "classes": (TextClassification(labels=("x", "y", "z")), {"text": "", "label": ""}),
    "scores": (TextClassification(labels=("score",), problem_type="regression"), {"text": "", "score": 0}),
    "tokens": (
        TokenClassification(labels=("O", "B-x", "I-x"), bio=True),
        {"tokens": ["my", "bank", "card"], "tags": ["O", "B-x", "I-x"]},
    ),
}


@pytest.fixture
def config(toy_config: EncoderConfig) -> EncoderConfig:
    return replace(toy_config, hidden_dropout=0.0, attention_dropout=0.0)


def varied(fields: dict[str, Any]) -> list[Record]:
    """Records of different lengths, whose first words determine the label."""
    rows = []
    for i in range(8 * STEPS // 2):
        row = dict(fields)
        if "tokens" in row:
            row["tokens"], row["tags"] = row["tokens"][i % 3 :] * (1 + i % 4), row["tags"][i % 3 :] * (1 + i % 4)
        else:
            row["text"] = ("lost", "good", "late")[i % 3] + " my train" * (1 + i % 4)
        row |= {key: value for key, value in (("label", "xyz"[i % 3]), ("score", i % 3)) if key in row}
        rows.append(Record(row, Path("rows.jsonl"), i + 1))
    return rows


@pytest.mark.parametrize("kind", LABELLED)
def test_fine_tuning_losses_match_transformers(
    kind: str, config: EncoderConfig, toy_vocab: Path, tmp_path: Path
) -> None:
    task, fields = LABELLED[kind]
    torch.manual_seed(0)
    (tmp_path / "base").mkdir()
    save_model(TaskModel(config, task), tmp_path / "base", tokenizer_from=toy_vocab)
    source, settings = open_checkpoint(tmp_path / "base"), TrainSettings(epochs=2, batch_size=8, lr=1e-3)
    losses = []
    for model in (load_model(source, task), TransformersTaskModel(source.path, task)):
        examples = labelled_examples(source, task, varied(fields), settings)
        module = FineTuning(model, examples, settings, "fp32")  # type: ignore[arg-type]
        fit(module, examples, examples, settings, FP32, tmp_path / type(model).__name__, resume=False)
        losses.append([row["loss"] for row in module.rows if "loss" in row])
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert losses[0][-1] < 0.9 * losses[0][0]


def relevance_rows(kind: str) -> list[Record]:
    """Rows whose right document, of three lengths, has the word of the query."""
    rows: list[dict[str, Any]] = []
    for i in range(8 * STEPS // 2):
        query, right, wrong = ("lost", "late")[i % 2], ("lost", "late")[i % 2], ("late", "lost")[i % 2]
        right, wrong = right + " my train" * (1 + i % 3), wrong + " my card" * (1 + i % 2)
        if kind == "triples":
            rows.append({"query": query, "positive": right, "negative": [wrong, "good"]})
        elif kind == "lists":
            rows.append({"query": query, "documents": [wrong, right], "scores": [0, 1]})
        else:
            rows.append({"text": query, "text_pair": (right, wrong)[i // 2 % 2], "label": 1 - i // 2 % 2})
    return [Record(row, Path("rows.jsonl"), number) for number, row in enumerate(rows, start=1)]


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_reranking_losses_match_transformers(kind: str, config: EncoderConfig, toy_vocab: Path, tmp_path: Path) -> None:
    task, rows = Reranking(), relevance_rows(kind)
    torch.manual_seed(0)
    (tmp_path / "base").mkdir()
    save_model(TaskModel(config, task), tmp_path / "base", tokenizer_from=toy_vocab)
    source, settings = open_checkpoint(tmp_path / "base"), TrainSettings(epochs=2, batch_size=8, lr=1e-3)
    theirs: Any = TransformersTaskModel(source.path, TextClassification(labels=("score",), problem_type="regression"))
    theirs.task = task
    losses = []
    for model in (load_model(source, task), theirs):
        tokenizer = source.text_tokenizer(settings.max_tokens, task.windows)
        train = ExampleDataset(task, relevance_examples(rows), tokenizer)
        dev = ExampleDataset(task, [task.example(row) for row in rows], tokenizer)
        module = FineTuning(model, dev, settings, "fp32")
        fit(module, train, dev, settings, FP32, tmp_path / type(model).__name__, resume=False)
        losses.append([row["loss"] for row in module.rows if "loss" in row])
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert losses[0][-1] < 0.9 * losses[0][0]


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "mpnet", "roberta"])
def test_segments_are_left_out_for_models_without(family: str, toy_vocab: Path, tmp_path: Path) -> None:
    """A pair's second segment has no embedding in these families."""
    encoder: Any = reference(family, "Model")
    encoder.save_pretrained(tmp_path)
    shutil.copy(toy_vocab / "vocab.txt", tmp_path)
    model = TransformersTaskModel(tmp_path, TextClassification(labels=("x", "y", "z"))).eval()
    ids = torch.arange(5, 17).view(2, 6)
    mask, segments = torch.ones_like(ids), torch.ones_like(ids)
    assert torch.equal(model(ids, mask, segments), model(ids, mask, 0 * segments))


@pytest.fixture
def base(config: EncoderConfig, toy_vocab: Path, tmp_path: Path) -> tuple[MaskedLanguageModel, Path]:
    """A model with its checkpoint."""
    torch.manual_seed(0)
    model = MaskedLanguageModel(config, FillMask(mask_token="[MASK]", mask_token_id=4), pairs=True)
    (tmp_path / "base").mkdir()
    model.save(tmp_path / "base", toy_vocab, 32)
    return model, tmp_path / "base"


@pytest.fixture
def batches(base: tuple[MaskedLanguageModel, Path], toy_vocab: Path, tmp_path: Path) -> dict[str, PretrainingBatches]:
    """The same sequences with our masks and with transformers', and a few dev batches."""
    cache = toy_cache(tmp_path / "corpus", toy_vocab, random_documents(60, 20))
    settings = PretrainSettings(objective="mlm+nsp", batch_size=8, max_tokens=32).batch_settings()
    arguments = (
        np.arange(3, cache.num_documents),
        PretrainingVocabulary.from_tokenizer(toy_tokenizer(toy_vocab)),
        settings,
    )
    return {
        "ours": PretrainingBatches(cache, *arguments),
        "theirs": CollatedBatches(base[1], cache, *arguments),
        "dev": PretrainingBatches(cache, np.arange(3), *arguments[1:]),
    }


def test_pretraining_losses_match_transformers(
    base: tuple[MaskedLanguageModel, Path], batches: dict[str, PretrainingBatches], tmp_path: Path
) -> None:
    """Both model classes train on our masks."""
    settings = PretrainSettings(
        objective="mlm+nsp", steps=STEPS, eval_every=STEPS, batch_size=8, max_tokens=32, lr=4e-3, precision="fp32"
    )
    ours, folder = base
    models: list[PretrainingModel] = [ours, TransformersPretraining(ours.config, pairs=True, base=folder)]
    losses = []
    for number, model in enumerate(models):
        module = Pretraining(model, batches["ours"], batches["dev"], settings, "fp32", {})
        fit_pretraining(module, settings, FP32, tmp_path / str(number), resume=False)
        losses.append([row["loss"] for row in module.rows if "loss" in row])
    assert len(losses[0]) == STEPS
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert losses[0][-1] < 0.9 * losses[0][0]


def test_collator_masks_the_same_sequences(batches: dict[str, PretrainingBatches]) -> None:
    """It masks other tokens of them."""
    masked = tokens = 0
    for number in range(len(batches["ours"])):
        ours, theirs = (batches[name][number] for name in ("ours", "theirs"))
        originals = [
            torch.where(batch.labels == IGNORE_INDEX, batch.input_ids, batch.labels) for batch in (ours, theirs)
        ]
        assert torch.equal(*originals)
        for name in ("attention_mask", "token_type_ids", "sentence_labels"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
        hidden = theirs.labels != IGNORE_INDEX
        masked += int(hidden.sum())
        tokens += int((theirs.attention_mask.sum(dim=1) - 3).sum())
        special = batches["ours"].vocabulary.special_ids
        assert not np.isin(theirs.labels[hidden].numpy(), special).any()
        assert torch.equal(batches["theirs"][number].input_ids, theirs.input_ids)
    assert masked / tokens == pytest.approx(0.15, abs=0.03)
