"""The dev metric that decides which epoch is best."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_models import TrainingError, open_checkpoint
from bert_models.training import TrainSettings, fine_tune
from bert_models.training.selection import selectable_metrics, selected_metric
from bert_runtime.evaluation import build_examples
from bert_runtime.records import read_records
from bert_runtime.tasks import NextSentencePrediction, TextClassification, TokenClassification

SETTINGS = TrainSettings(epochs=1, batch_size=8, precision="fp32")

CLASSIFIER = TextClassification(labels=("a", "b"))

KINDS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("text-classification", {}, [{"text": "my card", "label": "a"}, {"text": "rain", "label": "b"}]),
    (
        "text-classification",
        {"problem_type": "multi_label"},
        [{"text": "my card", "labels": ["a"]}, {"text": "rain", "labels": ["a", "b"]}],
    ),
    (
        "text-classification",
        {"problem_type": "regression"},
        [{"text": "my card", "score": 1}, {"text": "the rain is late", "score": 2}],
    ),
    (
        "token-classification",
        {},
        [{"tokens": ["my", "card"], "tags": ["O", "B-x"]}, {"tokens": ["rain"], "tags": ["O"]}],
    ),
    (
        "question-answering",
        {},
        [{"question": "where", "context": "at the bank", "answers": [{"text": "bank", "answer_start": 7}]}],
    ),
    ("fill-mask", {}, [{"text": "my [MASK]", "label": "card"}]),
    ("next-sentence-prediction", {}, [{"text": "my card", "text_pair": "is lost", "label": "is_next"}]),
    (
        "sentence-embedding",
        {},
        [
            {"text": "my card", "text_pair": "a card", "score": 5},
            {"text": "my card", "text_pair": "the rain", "score": 0},
        ],
    ),
    (
        "sentence-embedding",
        {},
        [{"query": "my card", "positive": "a card"}, {"query": "rain", "positive": "the rain is late"}],
    ),
    (
        "sparse-embedding",
        {},
        [{"query": "my card", "positive": "a card"}, {"query": "rain", "positive": "the rain is late"}],
    ),
    (
        "rerank",
        {},
        [
            {"text": "my card", "text_pair": "a card", "label": 1},
            {"text": "my card", "text_pair": "the rain", "label": 0},
        ],
    ),
]


@pytest.mark.parametrize(("task", "task_settings", "rows"), KINDS, ids=range(len(KINDS)))
def test_selectable_metrics_are_those_that_the_task_computes(
    task: str, task_settings: dict[str, Any], rows: list[dict[str, Any]], classifier_checkpoint: Path, tmp_path: Path
) -> None:
    """All but those of which lower is better, and what a threshold is tuned by."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    arguments = (task, classifier_checkpoint, file, file, tmp_path / "out", SETTINGS)
    report = fine_tune(*arguments, task_settings=task_settings)
    checkpoint = open_checkpoint(tmp_path / "out")
    examples = build_examples(checkpoint.task(), checkpoint.text_tokenizer(), read_records(file))
    others = {"epoch", "train_loss", "mean_squared_error", "perplexity", "best_threshold", "best_micro_f1"}
    assert {*selectable_metrics(checkpoint.task(), examples)} == {*report["best"]} - others
    assert selectable_metrics(checkpoint.task(), examples)[0] == report["metric"]


def test_balanced_class_weights_select_by_macro_f1() -> None:
    balanced = TrainSettings(class_weights="balanced")
    assert selected_metric(CLASSIFIER, [], TrainSettings()) == "accuracy"
    assert selected_metric(CLASSIFIER, [], balanced) == "macro_f1"
    assert selected_metric(CLASSIFIER, [], TrainSettings(class_weights="balanced", metric="accuracy")) == "accuracy"
    assert selected_metric(NextSentencePrediction(), [], balanced) == "accuracy"
    assert selected_metric(TokenClassification(labels=("O", "B-x")), [], balanced) == "f1"


def test_unknown_metric_is_refused_before_training(classifier_checkpoint: Path, tmp_path: Path) -> None:
    (file := tmp_path / "rows.csv").write_text("text,label\nmy card,a\nrain,b\n")
    arguments = ("text-classification", classifier_checkpoint, file, file, tmp_path / "out")
    with pytest.raises(TrainingError, match=r"metric: expected one of accuracy, macro_f1 for .*, found 'micro_f1'$"):
        fine_tune(*arguments, TrainSettings(metric="micro_f1"))
    assert not (tmp_path / "out").exists()
