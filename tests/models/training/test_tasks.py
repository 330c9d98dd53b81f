"""Fine-tuning every task on a file of its kind, and what the checkpoint holds afterwards."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bert_export import export
from bert_models import FAMILIES, EncoderConfig, TaskModel, TrainingError, load_model, open_checkpoint, save_model
from bert_models.tokenizer_files import read_tokenizer
from bert_models.training import TrainSettings, fine_tune
from bert_runtime import load
from bert_runtime.errors import DataError
from bert_runtime.evaluation import evaluate
from bert_runtime.metrics import entity_spans
from bert_runtime.records import read_records
from bert_runtime.tasks import (
    TASKS,
    SentenceEmbedding,
    TextClassification,
    TokenClassification,
)
from bert_runtime.tasks.tokens import join_words

FILES: dict[str, list[dict[str, Any]]] = {
    "token-classification": [
        {"tokens": ["my", "card", "is", "lost", "at", "bank"], "tags": ["O", "B-item", "O", "O", "O", "B-place"]},
        {"tokens": ["the", "bank", "is", "closed"], "tags": ["O", "B-place", "O", "O"]},
        {"tokens": ["help", "my", "train", "book", "please"], "tags": ["O", "O", "B-item", "I-item", "O"]},
    ],
    "question-answering": [
        {"question": "where", "context": "my card is at the bank.", "answers": [{"text": "bank", "answer_start": 18}]},
        {"question": "what is lost", "context": "the card is lost.", "answers": [{"text": "card", "answer_start": 4}]},
        {"question": "why is the sun late", "context": "my book is great.", "answers": []},
    ],
    "fill-mask": [
        {"text": "my card is [MASK] at the bank", "label": "lost"},
        {"text": "[MASK] is the [MASK]", "labels": ["where", "train"]},
        {"text": "good [MASK]", "label": "morning"},
    ],
    "next-sentence-prediction": [
        {"text": "my card", "text_pair": "is lost", "label": "is_next"},
        {"text": "the weather", "text_pair": "is great", "label": "is_next"},
        {"text": "hello", "text_pair": "refund", "label": "not_next"},
    ],
    "rerank": [
        {"text": "where is my card", "text_pair": "the card is lost", "label": 1},
        {"text": "where is my card", "text_pair": "good morning", "label": 0},
        {"text": "why is the train late", "text_pair": "the rain", "label": 1},
        {"text": "why is the train late", "text_pair": "the card is lost", "label": 0},
    ],
    "sparse-embedding": [
        {"text": "my card", "text_pair": "a card is lost"},
        {"text": "good morning", "text_pair": "hello"},
        {"text": "why is the train late", "text_pair": "the rain"},
    ],
    "sentence-embedding": [
        {"text": "my card", "text_pair": "a card", "score": 5},
        {"text": "my card", "text_pair": "the rain", "score": 0},
        {"text": "good morning", "text_pair": "hello", "score": 4},
    ],
}  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], times: int = 1) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * times), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", FILES)
def test_every_task_reaches_a_perfect_dev_metric(task: str, classifier_checkpoint: Path, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.jsonl", FILES[task], 8), write(tmp_path / "dev.jsonl", FILES[task])
    settings = TrainSettings(epochs=30 if task == "fill-mask" else 12, batch_size=8, lr=2e-3, precision="fp32")
    report = fine_tune(task, classifier_checkpoint, train, dev, tmp_path / "out", settings)
    assert report["best"][report["metric"]] >= 0.99
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.task().to_dict() == report["task"]
    assert load_model(checkpoint, checkpoint.task()).task.name == task


@pytest.fixture(scope="module")
def mpnet_checkpoint(tmp_path_factory: pytest.TempPathFactory, toy_vocab: Path) -> Path:
    """A toy MPNet with random weights."""
    folder = tmp_path_factory.mktemp("mpnet")
    words = (toy_vocab / "vocab.txt").read_text(encoding="utf-8")
    (folder / "vocab.txt").write_text(f"<s>\n<pad>\n</s>\n<unk>\n{words}<mask>\n", encoding="utf-8")
    size = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64, "max_positions": 66}
    config = FAMILIES["mpnet"].preset("base", **size, vocab_size=read_tokenizer(folder, "mpnet").get_vocab_size())
    torch.manual_seed(0)
    save_model(TaskModel(config, TextClassification(labels=("a", "b"))), folder, tokenizer_from=folder)
    return folder


@pytest.mark.parametrize("task", [name for name in FAMILIES["mpnet"].head_weights if TASKS[name].has_labels])
def test_position_bias_is_trained_with_every_head(task: str, mpnet_checkpoint: Path, tmp_path: Path) -> None:
    rows = FILES.get(task, [{"text": "my card", "label": "a"}, {"text": "the rain is late", "label": "b"}])
    text = json.dumps(rows).replace("[MASK]", "<mask>")
    file = write(tmp_path / "train.jsonl", json.loads(text), 8)
    settings = TrainSettings(epochs=30 if task == "fill-mask" else 12, batch_size=8, lr=2e-3, precision="fp32")
    report = fine_tune(task, mpnet_checkpoint, file, file, tmp_path / "out", settings)
    assert report["best"][report["metric"]] >= 0.99
    before, after = (load_file(folder / "model.safetensors") for folder in (mpnet_checkpoint, tmp_path / "out"))
    (name,) = (name for name in after if "relative_attention_bias" in name)
    assert not torch.equal(after[name], before[f"mpnet.{name.removeprefix('mpnet.')}"])
    checkpoint = open_checkpoint(tmp_path / "out")
    assert load_model(checkpoint, checkpoint.task()).task.name == task


def test_crf_is_trained_and_saved(classifier_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 8)
    settings = TrainSettings(epochs=3, batch_size=8, lr=2e-3, precision="fp32")
    options = {"crf": True, "bio": True, "aggregation": "first"}
    fine_tune(
        "token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings, task_settings=options
    )
    checkpoint = open_checkpoint(tmp_path / "out")
    task = checkpoint.task()
    assert isinstance(task, TokenClassification)
    assert (task.crf, task.bio, task.aggregation, task.transitions) == (True, True, "first", ())
    decoded = load_model(checkpoint, task).runtime_task()
    assert isinstance(decoded, TokenClassification)
    transitions = np.array(decoded.transitions)
    assert transitions.shape == (len(task.labels) + 2, len(task.labels))
    begin, inside = task.labels.index("B-item"), task.labels.index("I-item")
    assert transitions[begin, inside] > transitions[inside, inside]  # the only place where I-item was seen


def test_base_with_a_crf_goes_on_with_it(classifier_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 8)
    settings = TrainSettings(epochs=3, batch_size=8, lr=2e-3, precision="fp32")
    arguments = ("token-classification", classifier_checkpoint, file, file, tmp_path / "base", settings)
    fine_tune(*arguments, task_settings={"crf": True})
    base = load_file(tmp_path / "base" / "model.safetensors")["crf.transitions"]
    gentle = TrainSettings(epochs=1, batch_size=8, lr=1e-6, precision="fp32")
    lines: list[str] = []
    fine_tune("token-classification", tmp_path / "base", file, file, tmp_path / "out", gentle, progress=lines.append)
    after = load_file(tmp_path / "out" / "model.safetensors")["crf.transitions"]
    assert 0 < (after - base).abs().max() < base.abs().max()
    assert not any("new output layer" in line for line in lines)


def test_regression_goes_on_from_a_base_whose_output_has_another_name(
    toy_config: EncoderConfig, toy_vocab: Path, tmp_path: Path
) -> None:
    """Hugging Face's regression models have the label `LABEL_0`."""
    torch.manual_seed(0)
    base = TaskModel(toy_config, TextClassification(labels=("LABEL_0",), problem_type="regression"))
    (tmp_path / "base").mkdir()
    save_model(base, tmp_path / "base", tokenizer_from=toy_vocab)
    file = write(tmp_path / "train.jsonl", [{"text": "my card", "score": 1}, {"text": "the rain", "score": 0}], 4)
    lines: list[str] = []
    fine_tune(
        "text-classification", tmp_path / "base", file, file, tmp_path / "out",
        TrainSettings(epochs=1, lr=1e-7, precision="fp32"),
        task_settings={"problem_type": "regression"}, progress=lines.append,
    )  # fmt: skip
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    torch.testing.assert_close(after["classifier.weight"], before["classifier.weight"], atol=1e-5, rtol=0)
    assert not any("new output layer" in line for line in lines)


def test_new_output_layer_for_other_labels_is_reported(classifier_checkpoint: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = TrainSettings(epochs=1, precision="fp32")
    rows = [{"text": "my card", "label": "a"}, {"text": "the rain", "label": "b"}]
    file = write(tmp_path / "train.jsonl", rows, 4)
    fine_tune(
        "text-classification", classifier_checkpoint, file, file, tmp_path / "out", settings, progress=lines.append
    )
    assert (
        "starting with a new output layer: the base's labels are others than those of the rows "
        "(greeting, farewell, question)"
    ) in lines


def test_predictions_match_the_dev_metric(classifier_checkpoint: Path, tmp_path: Path) -> None:
    """Decoding uses the first token of a word, as training and evaluation do, and valid BIO sequences only."""
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 8)
    settings = TrainSettings(epochs=4, batch_size=8, lr=1e-3, precision="fp32")
    fine_tune("token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings)
    task = open_checkpoint(tmp_path / "out").task()
    assert isinstance(task, TokenClassification)
    assert (task.aggregation, task.bio, task.crf) == ("first", True, False)
    export(tmp_path / "out", tmp_path / "bundle", precisions=["fp32"])
    model = load(tmp_path / "bundle")
    records = read_records(file)
    found = [{(e.label, e.start, e.end) for e in model(join_words(record.tokens())[0]).entities} for record in records]
    gold = []
    for record in records:
        _, spans = join_words(record.tokens())
        entities = entity_spans(record.tags())
        gold.append({(kind, int(spans[first, 0]), int(spans[after - 1, 1])) for kind, first, after in entities})
    hits, total = sum(len(x & y) for x, y in zip(found, gold, strict=True)), sum(len(x) for x in (*found, *gold))
    assert evaluate(model, records)["f1"] == pytest.approx(2 * hits / total)
    assert 0 < 2 * hits / total < 1


def test_attention_pooling_is_saved_and_loaded(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 8)
    settings = TrainSettings(epochs=2, batch_size=8, lr=2e-3, precision="fp32")
    arguments = ("sentence-embedding", embedding_checkpoint, file, file, tmp_path / "out", settings)
    fine_tune(*arguments, task_settings={"pooling": "attention"})
    checkpoint = open_checkpoint(tmp_path / "out")
    task = checkpoint.task()
    assert isinstance(task, SentenceEmbedding)
    assert task.pooling == "attention"
    score = dict(load_model(checkpoint, task).named_parameters())["head.pooling.score.weight"]
    again = dict(load_model(checkpoint, task).named_parameters())["head.pooling.score.weight"]
    assert torch.equal(score, again)


def test_threshold_is_tuned_on_the_dev_file(classifier_checkpoint: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "my card", "labels": ["a", "b"]},
        {"text": "good rain", "labels": ["b"]},
        {"text": "hi", "labels": []},
    ]
    file = write(tmp_path / "train.jsonl", rows, 8)
    arguments = ("text-classification", classifier_checkpoint, file, file, tmp_path / "out")
    settings = TrainSettings(epochs=1, batch_size=8, lr=1e-4, precision="fp32")
    report = fine_tune(*arguments, settings, task_settings={"problem_type": "multi_label"})
    assert report["task"]["threshold"] == report["best"]["best_threshold"]
    assert report["best"]["micro_f1"] == pytest.approx(report["best"]["best_micro_f1"])
    assert open_checkpoint(tmp_path / "out").task().to_dict() == report["task"]


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        (
            "fill-mask",
            {"text": "my [MASK]", "label": "cardbank"},
            r":1: expected a word that is one token .* 'cardbank'",
        ),
        ("fill-mask", {"text": "my card " * 60 + "[MASK]", "label": "card"}, r":1: expected at least one \[MASK\]"),
        (
            "question-answering",
            {"question": "why " * 60, "context": "my card", "answers": [{"text": "card", "answer_start": 3}]},
            r":1: the first text has 60 tokens; expected at most",
        ),
    ],
)
def test_unusable_rows_are_named(
    task: str, row: dict[str, Any], message: str, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "train.jsonl", [row])
    with pytest.raises(DataError, match=message):
        fine_tune(task, classifier_checkpoint, file, file, tmp_path / "out", TrainSettings())


def test_dimensions_are_saved_in_the_checkpoint(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 2)
    arguments = ("sentence-embedding", embedding_checkpoint, file, file, tmp_path / "out")
    fine_tune(*arguments, TrainSettings(epochs=1, precision="fp32"), task_settings={"dimensions": 8})
    task = open_checkpoint(tmp_path / "out").task()
    assert isinstance(task, SentenceEmbedding)
    assert task.dimensions == 8


def test_pooling_of_the_base_can_be_replaced(embedding_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["sentence-embedding"], 2)
    base = embedding_checkpoint
    for pooling in ("attention", "mean"):
        arguments = (
            "sentence-embedding",
            base,
            file,
            file,
            tmp_path / pooling,
            TrainSettings(epochs=1, precision="fp32"),
        )
        fine_tune(*arguments, task_settings={"pooling": pooling})
        base = tmp_path / pooling
    task = open_checkpoint(base).task()
    assert isinstance(task, SentenceEmbedding)
    assert task.pooling == "mean"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("token-classification", {"problem_type": "regression"}, "token-classification has no setting problem_type"),
        ("token-classification", {"labels": ("a",)}, "has no setting labels"),
        ("token-classification", {"aggregation": "median"}, "expected an aggregation of none, simple"),
        ("sentence-embedding", {"pooling": "median"}, "expected a pooling of mean"),
    ],
)
def test_unknown_task_settings_are_rejected(
    task: str, settings: dict[str, Any], message: str, embedding_checkpoint: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "train.jsonl", FILES[task])
    with pytest.raises(TrainingError, match=message):
        fine_tune(task, embedding_checkpoint, file, file, tmp_path / "out", TrainSettings(), task_settings=settings)
    assert not (tmp_path / "out").exists()


def test_bio_with_other_labels_is_rejected(classifier_checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["my", "card"], "tags": ["DET", "NOUN"]}]
    file = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(TrainingError, match=r"bio needs labels O, B-… and I-…, found DET, NOUN"):
        fine_tune(
            "token-classification", classifier_checkpoint, file, file, tmp_path / "out", TrainSettings(),
            task_settings={"bio": True},
        )  # fmt: skip


def test_bio_labels_are_grouped_by_type(classifier_checkpoint: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", FILES["token-classification"], 2)
    settings = TrainSettings(epochs=1, precision="fp32")
    report = fine_tune("token-classification", classifier_checkpoint, file, file, tmp_path / "out", settings)
    assert report["task"]["labels"] == ("O", "B-item", "I-item", "B-place")
