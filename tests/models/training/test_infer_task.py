"""The task that a training run infers from its files and its base."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_models import Checkpoint, CheckpointError, TrainingError, open_checkpoint
from bert_models.families import FAMILIES
from bert_models.task_settings import task_config_json
from bert_models.training.infer_task import infer_task
from bert_runtime.errors import DataError
from bert_runtime.records import Record
from bert_runtime.tasks import QuestionAnswering, Task, TextClassification, TokenClassification


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


def tagged(*rows: str, name: str = "train.conll") -> list[Record]:
    """Return a row of words for each string of tags."""
    return [
        Record({"tokens": ["a"] * len(row.split()), "tags": row.split()}, Path(name), 10 * i + 1)
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("train", "dev", "count", "first"),
    [
        (["B-x I-x O", "O I-x O", "I-x"], [], 2, "'I-x' at train.conll:11"),  # IOB1: no B-x in front of the first
        (["B-x I-x O B-y I-y", "B-x I-y"], [], 1, "'I-y' at train.conll:11"),  # after another type
        (["B-x I-x O"], ["O", "O I-x I-x"], 1, "'I-x' at dev.conll:11"),  # the second continues it
    ],
)
@pytest.mark.parametrize("crf", [False, True])
def test_tags_that_violate_bio_turn_it_off_and_are_reported(
    classifier: Checkpoint, train: list[str], dev: list[str], count: int, first: str, crf: bool
) -> None:
    notes: list[str] = []
    rows = tagged(*train), tagged(*dev, name="dev.conll")
    task = infer_task("token-classification", classifier, *rows, {"crf": crf}, progress=notes.append)
    assert isinstance(task, TokenClassification)
    assert not task.bio
    assert len(notes) == 1
    assert f"{count} I-… follow neither B-… nor I-… of their type, the first is {first};" in notes[0]


def test_bio_stays_on_where_tags_follow_it_or_the_user_asks_for_it(classifier: Checkpoint) -> None:
    notes: list[str] = []
    for rows, settings in ((["B-x I-x I-x B-x O"], {}), (["B-x O I-x"], {"bio": True})):
        task = infer_task("token-classification", classifier, tagged(*rows), [], settings, progress=notes.append)
        assert isinstance(task, TokenClassification)
        assert task.bio
    assert notes == []


def trained(classifier: Checkpoint, task: Task) -> Checkpoint:
    """Return a checkpoint that says that it was trained for the task."""
    architectures = [classifier.family.architectures[task.name]]
    return replace(
        classifier, config_json={**classifier.config_json, **task_config_json(task), "architectures": architectures}
    )


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"crf": True, "aggregation": "max", "bio": True}, {}, (True, "max", True)),
        ({"crf": True, "aggregation": "max"}, {}, (True, "max", True)),  # BIO follows from the rows
        ({"crf": True, "aggregation": "max"}, {"crf": False, "bio": False}, (False, "max", False)),
    ],
)
@pytest.mark.parametrize("labels", [("O", "B-x", "I-x"), ("O", "B-y", "I-y")])
def test_settings_of_a_base_for_the_task_are_kept(
    classifier: Checkpoint,
    labels: tuple[str, ...],
    changes: dict[str, Any],
    settings: dict[str, Any],
    expected: tuple[bool, str, bool],
) -> None:
    """Unless the user gives others; labels are those of the rows."""
    base = trained(classifier, TokenClassification(labels=labels, **changes))
    task = infer_task("token-classification", base, tagged("O B-x I-x"), [], settings)
    assert isinstance(task, TokenClassification)
    assert task.labels == ("O", "B-x", "I-x")
    assert (task.crf, task.aggregation, task.bio) == expected


def test_bio_of_a_base_ends_with_tags_that_violate_it_and_begins_with_labels_of_bio(classifier: Checkpoint) -> None:
    for labels, tags, bio in ((("O", "B-x", "I-x"), "O I-x B-x", False), (("DET", "NOUN"), "O B-x I-x", True)):
        base = trained(classifier, TokenClassification(labels=labels, bio=labels[0] == "O"))
        task = infer_task("token-classification", base, tagged(tags), [], {})
        assert isinstance(task, TokenClassification)
        assert task.bio is bio


def test_limits_of_answers_of_a_base_are_kept(classifier: Checkpoint) -> None:
    base = trained(classifier, QuestionAnswering(n_best=7, max_answer_tokens=9, no_answer_threshold=2.0))
    task = infer_task("question-answering", base, [], [], {"max_answer_tokens": 8})
    assert task == QuestionAnswering(n_best=7, max_answer_tokens=8)
