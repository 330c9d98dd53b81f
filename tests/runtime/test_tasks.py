"""Tasks: from raw outputs to answers, from rows to examples, and how good or how faithful outputs are."""

import math
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_runtime.errors import BundleError, DataError
from bert_runtime.records import Record
from bert_runtime.tasks import (
    TASKS,
    Classification,
    Embedding,
    Example,
    NextSentencePrediction,
    SentenceEmbedding,
    TextClassification,
    TextInput,
    task_from_dict,
)
from bert_runtime.tasks.sentence_embedding import cosine
from bert_runtime.tasks.text_classification import softmax

COLOURS = TextClassification(labels=("red", "green", "blue"))


def record(**fields: object) -> Record:
    return Record(fields, Path("data.jsonl"), 3)


def test_softmax_by_hand() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0]]))
    assert softmax(logits) == pytest.approx(np.array([[0.125, 0.25, 0.625], [0.375, 0.375, 0.25]]))


@pytest.mark.parametrize("offset", [-1e4, 0, 1e4])
def test_softmax_survives_large_logits(offset: float) -> None:
    found = softmax(np.array([0.0, 1.0], dtype=np.float32) + np.float32(offset))
    assert found.dtype == np.float32
    assert found == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)], rel=1e-5)
    assert softmax(np.array([-1e38, 1e38], dtype=np.float32)).tolist() == [0, 1]


def test_classification_keeps_what_it_was_decided_from() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0], [6.0, 1.0, 1.0]], dtype=np.float32))
    first, second = COLOURS.decode(logits)
    assert isinstance(first, Classification)
    assert isinstance(second, Classification)
    assert (first.label, second.label) == ("blue", "red")
    assert first.score == pytest.approx(0.625)
    assert first.scores == pytest.approx([0.125, 0.25, 0.625])
    assert first.logits.tolist() == logits[0].tolist()
    assert first.to_dict() == {"label": "blue", "score": first.score}
    with pytest.raises(FrozenInstanceError):
        first.label = "red"  # type: ignore[misc]


def test_top_labels_are_best_first_and_ties_keep_their_order() -> None:
    (result,) = TextClassification(labels=("a", "b", "c", "d")).decode(np.log([[2.0, 1.0, 4.0, 1.0]]))
    assert isinstance(result, Classification)
    assert result.top() == [
        ("c", pytest.approx(0.5)),
        ("a", pytest.approx(0.25)),
        ("b", pytest.approx(0.125)),
        ("d", pytest.approx(0.125)),
    ]
    assert [label for label, _ in result.top(2)] == ["c", "a"]


def test_classification_example() -> None:
    assert COLOURS.example(record(text="grass", label="green")) == Example((TextInput("grass"),), 1.0)
    assert COLOURS.example(record(text="sky", text_pair="sea", label="blue")).inputs == (TextInput("sky", "sea"),)
    numbers = TextClassification(labels=("0", "1"))
    assert numbers.example(record(text="a", label=1)).target == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "a", "label": "pink"}, r"label 'pink' is not one of the model's 3 labels \(red, green, blue\)"),
        ({"text": "a"}, "expected a field 'label', found only 'text'"),
        ({"label": "red"}, "expected a field 'text', found only 'label'"),
        ({"text": "", "label": "red"}, "'text' is empty"),
        ({"text": "a", "text_pair": 4, "label": "red"}, "expected 'text_pair' to be a string, found int"),
    ],
)
def test_rows_that_are_no_classification_example(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^data.jsonl:3: {message}"):
        COLOURS.example(record(**fields))


def test_an_unknown_label_does_not_list_hundreds() -> None:
    task = TextClassification(labels=tuple(f"intent {i}" for i in range(77)))
    with pytest.raises(DataError, match=r"77 labels \(intent 0, .*, intent 9, …\)"):
        task.example(record(text="a", label="other"))


def test_classification_score() -> None:
    logits = np.array([[2.0, 1, 0], [0, 2, 1], [0, 1, 2], [0, 1, 2]])
    examples = [Example((TextInput("a"),), float(target)) for target in (0, 1, 1, 2)]
    assert COLOURS.score(logits, examples) == {"accuracy": 0.75, "macro_f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3)}


def test_classification_agreement() -> None:
    reference = np.array([[1.0, 0, 0], [0, 1, 0]], dtype=np.float32)
    found = COLOURS.agreement(reference + np.array([[0, 0.5, 0], [2, 0, 0]], dtype=np.float32), reference)
    assert found == {
        "label_agreement": 0.5,
        "mean_abs_logit_drift": pytest.approx(2.5 / 6),
        "max_abs_logit_drift": pytest.approx(2),
    }


def test_cosine_by_hand() -> None:
    x = np.array([[3.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=np.float32)
    y = np.array([[6.0, 8.0], [0.0, 2.0], [-1.0, -1.0], [1.0, 1.0]], dtype=np.float32)
    assert cosine(x, y) == pytest.approx([1, 0, -1, 0])


def test_embedding_result() -> None:
    vectors = np.array([[0.6, 0.8], [1.0, 0.0]], dtype=np.float32)
    first, second = SentenceEmbedding(dimensions=2).decode(vectors)
    assert isinstance(first, Embedding)
    assert isinstance(second, Embedding)
    assert first.to_dict() == {"embedding": vectors[0].tolist()}
    assert second.vector.tolist() == [1, 0]


def test_embedding_example_is_two_texts_and_a_score() -> None:
    task = SentenceEmbedding(dimensions=2)
    assert task.example(record(text="a", text_pair="b", score="4.5")) == Example((TextInput("a"), TextInput("b")), 4.5)
    for fields, message in (
        ({"text": "a", "score": 1}, "expected a field 'text_pair'"),
        ({"text": "a", "text_pair": "b"}, "expected a number in 'score', found None"),
        ({"text": "a", "text_pair": "b", "score": "x"}, "expected a number in 'score', found 'x'"),
    ):
        with pytest.raises(DataError, match=f"^data.jsonl:3: {message}"):
            task.example(record(**fields))


def test_embedding_score_correlates_cosines_with_the_labels() -> None:
    """Rows 0 and 1 are the first example's texts, 2 and 3 the second's, and so on."""
    angles = np.radians([0, 10, 0, 80, 0, 45])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pair = (TextInput("a"), TextInput("b"))
    task = SentenceEmbedding(dimensions=2)
    agreed = task.score(vectors, [Example(pair, 5), Example(pair, 1), Example(pair, 3)])
    cosines = np.cos(np.radians([10, 80, 45]))
    assert agreed["spearman"] == pytest.approx(1)
    assert agreed["pearson"] == pytest.approx(np.corrcoef(cosines, [5, 1, 3])[0, 1])
    reversed_ = task.score(vectors, [Example(pair, 1), Example(pair, 5), Example(pair, 3)])
    assert reversed_["spearman"] == pytest.approx(-1)


def test_embedding_agreement() -> None:
    reference = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = SentenceEmbedding(dimensions=2).agreement(np.array([[2.0, 0.0], [1.0, 1.0]]), reference)
    assert found == {
        "mean_cosine": pytest.approx((1 + math.sqrt(0.5)) / 2),
        "min_cosine": pytest.approx(math.sqrt(0.5)),
    }


@pytest.mark.parametrize("name", TASKS)
def test_the_key_that_decides_is_among_those_measured(name: str) -> None:
    tasks = {
        "text-classification": COLOURS,
        "next-sentence-prediction": NextSentencePrediction(),
        "sentence-embedding": SentenceEmbedding(dimensions=3),
    }
    outputs = np.random.default_rng(0).normal(size=(6, 3))
    task = tasks[name]
    assert task.metric in task.score(outputs, [task.example(each) for each in _examples(name)])
    key, floor = task.agreement_floor
    assert task.agreement(outputs, outputs)[key] >= floor


def _examples(name: str) -> list[Record]:
    if name == "text-classification":
        return [record(text="a", label="red")] * 6
    if name == "next-sentence-prediction":
        return [record(text="a", text_pair="b", label="is_next")] * 6
    return [record(text="a", text_pair="b", score=score) for score in (1, 2, 3)]


def test_only_cls_pooling_reads_the_first_row_only() -> None:
    assert COLOURS.reads_first_row_only
    assert SentenceEmbedding(dimensions=2, pooling="cls").reads_first_row_only
    assert not SentenceEmbedding(dimensions=2, pooling="mean").reads_first_row_only


@pytest.mark.parametrize(
    "task", [COLOURS, SentenceEmbedding(dimensions=7, pooling="cls", normalize=False)], ids=lambda task: task.name
)
def test_settings_round_trip(task: TextClassification | SentenceEmbedding) -> None:
    assert task_from_dict(task.to_dict() | {"from the future": 1}) == task


CLASSIFIER = {"name": "text-classification", "labels": ["a", "b"]}
EMBEDDER = {"name": "sentence-embedding", "dimensions": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "unknown task None; this release knows text-classification, "),
        ({"name": "translation"}, "unknown task 'translation'"),
        ({"name": ["text-classification"]}, "unknown task"),
        ({"name": "text-classification"}, "labels"),
        (CLASSIFIER | {"labels": ["a"]}, r"expected at least 2 labels, found \['a'\]"),
        (CLASSIFIER | {"labels": ["a", "b", "a"]}, "labels must be distinct, found more than once: a"),
        (CLASSIFIER | {"labels": None}, "labels|malformed"),
        (CLASSIFIER | {"labels": "ab"}, "labels"),
        (CLASSIFIER | {"labels": [1, 2]}, "labels"),
        (CLASSIFIER | {"problem_type": "ranking"}, "expected a problem type of single_label, .*, found 'ranking'"),
        ({"name": "sentence-embedding"}, "dimensions"),
        (EMBEDDER | {"dimensions": 0}, "expected at least one dimension, found 0"),
        (EMBEDDER | {"dimensions": "4"}, "malformed"),
        (EMBEDDER | {"dimensions": 4.5}, "dimensions"),
        (EMBEDDER | {"pooling": "last"}, "expected a pooling of mean, cls, .*, found 'last'"),
        (
            EMBEDDER | {"dense_sizes": [4]},
            r"expected a size and an activation per dense layer, .* found \[4\] and \[\]",
        ),
        (EMBEDDER | {"dense_sizes": [4], "dense_activations": ["swish"]}, "expected activations of .*, found swish"),
        (EMBEDDER | {"normalize": "no"}, "normalize"),
    ],
)
def test_malformed_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        task_from_dict(settings)
