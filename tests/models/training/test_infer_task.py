"""The task that a training run infers from its files and its base."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_models import Checkpoint, CheckpointError, TrainingError, open_checkpoint
from bert_models.families import FAMILIES
from bert_models.training.infer_task import infer_task
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import TextClassification


def records(labels: list[object], name: str = "train.jsonl") -> list[Record]:
    texts = ["a", "b c", "a b c a b c", "c c", "b a b"]
    return [
        Record({"text": texts[i % len(texts)], "label": label}, Path(name), i + 1) for i, label in enumerate(labels)
    ]


@pytest.fixture(scope="module")
def classifier(classifier_checkpoint: Path) -> Checkpoint:
    """Trained for the labels greeting, farewell and question, in this order."""
    return open_checkpoint(classifier_checkpoint)


def read_labels(source: Checkpoint, *labels: object) -> tuple[str, ...]:
    task = infer_task("text-classification", source, records(list(labels)), records(list(labels)), {})
    assert isinstance(task, TextClassification)
    return task.labels


def test_labels_are_sorted_and_numbers_by_value(classifier: Checkpoint) -> None:
    assert read_labels(classifier, "b", "a") == ("a", "b")
    assert read_labels(classifier, 10, 9, "2") == ("2", "9", "10")
    same = [f"{0:0{n}}1" for n in range(1, 9)]
    assert read_labels(classifier, *same) == tuple(sorted(same))


def test_checkpoint_labels_keep_their_order(classifier: Checkpoint) -> None:
    assert read_labels(classifier, "farewell", "question", "greeting") == ("greeting", "farewell", "question")
    assert read_labels(classifier, "greeting", "farewell") == ("farewell", "greeting")


def test_labels_of_another_task_are_ignored(classifier: Checkpoint) -> None:
    """`id2label` stays in config.json whichever head is trained; the architecture tells whose labels they are."""
    other = replace(classifier, config_json={**classifier.config_json, "architectures": ["BertForTokenClassification"]})
    assert read_labels(other, "farewell", "question", "greeting") == ("farewell", "greeting", "question")


def test_all_unknown_dev_labels_are_named(classifier: Checkpoint) -> None:
    train, dev = records(["a", "b"]), records(["a", "q", "r", "q"], "dev.jsonl")
    with pytest.raises(
        DataError,
        match=r"dev\.jsonl: labels that train\.jsonl does not have: 'q' \(line 2\), 'r' \(line 3\)",
    ):
        infer_task("text-classification", classifier, train, dev, {})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("translation", {}, "unknown task 'translation'; expected one of text-classification, "),
        (
            "next-sentence-prediction",
            {"problem_type": "regression"},
            "^next-sentence-.* has no setting problem_type; it has none$",
        ),
        ("text-classification", {"labels": ("a", "b")}, "^text-classification has no setting labels"),
        (
            "sentence-embedding",
            {"prompt": "query: ", "normalize": True, "layer_norm": True},
            "^sentence-embedding: a checkpoint does not keep layer_norm, prompt; choose it when the model is exported",
        ),
        ("sparse-embedding", {"top_k": 8}, "^sparse-embedding: a checkpoint does not keep top_k"),
        ("text-classification", {"problem_type": "ranking"}, "^text-classification: expected a problem type of "),
    ],
)
def test_unknown_tasks_and_settings_are_rejected(
    classifier: Checkpoint, name: str, settings: dict[str, Any], message: str
) -> None:
    rows = records(["a", "b"])
    with pytest.raises(TrainingError, match=message):
        infer_task(name, classifier, rows, rows, settings)


def test_task_without_a_head_in_the_family_is_rejected(classifier: Checkpoint) -> None:
    """No row is read before."""
    with pytest.raises(CheckpointError, match="distilbert has no head for 'next-sentence-prediction'; it has heads "):
        infer_task("next-sentence-prediction", replace(classifier, family=FAMILIES["distilbert"]), [], [], {})
