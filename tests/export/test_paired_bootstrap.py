"""Paired intervals: fast ratios agree with resampling the task's own metric, and intervals with a formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Encoding

from bert_export import paired_bootstrap
from bert_export.paired_bootstrap import paired_drop
from bert_runtime.records import Record
from bert_runtime.similarity import similarity_matrix
from bert_runtime.tasks import (
    Example,
    Outputs,
    QuestionAnswering,
    Reranking,
    SentenceEmbedding,
    Task,
    TextClassification,
    TextInput,
    TokenClassification,
)

from ..runtime.task_models import random_model

NUM = 400


def outputs_of(logits: np.ndarray) -> list[Outputs]:
    encodings: tuple[Encoding, ...] = ()
    vocabulary: Any = None
    return [Outputs(TextInput("x"), encodings, (row,), vocabulary) for row in logits.astype(np.float32)]


def single(error: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of two labels that are wrong with some probability, and the labels."""
    labels = np.random.default_rng(0).integers(2, size=NUM)
    wrong = np.random.default_rng(seed).random(NUM) < error
    return np.eye(2)[labels ^ wrong] * 4, labels


def test_the_interval_of_an_accuracy_is_that_of_the_binomial() -> None:
    task = TextClassification(labels=("a", "b"))
    found, labels = single(0.1, 1)
    perfect, _ = single(0.0, 2)
    examples = [Example((TextInput("x"),), int(label)) for label in labels]
    drop = paired_drop(task, outputs_of(found), task, outputs_of(perfect), examples)
    accuracy = task.score(outputs_of(found), examples)["accuracy"]
    error = 1.96 * (accuracy * (1 - accuracy) / NUM) ** 0.5
    assert (drop.found, drop.reference, drop.rows) == (pytest.approx(accuracy), 1.0, NUM)
    assert drop.drop_percent == pytest.approx(100 * (1 - accuracy))
    assert drop.found_interval.low == pytest.approx(accuracy - error, abs=0.006)
    assert drop.found_interval.high == pytest.approx(accuracy + error, abs=0.006)
    assert drop.drop_interval.high == pytest.approx(100 * (1 - accuracy + error), abs=0.6)


def test_models_that_err_on_the_same_rows_have_the_interval_of_the_rule_of_three() -> None:
    task = TextClassification(labels=("a", "b"))
    found, labels = single(0.2, 1)
    examples = [Example((TextInput("x"),), int(label)) for label in labels]
    drop = paired_drop(task, outputs_of(found), task, outputs_of(found), examples)
    assert drop.drop_percent == 0.0
    largest = pytest.approx(100 * 3 / NUM / drop.reference)
    assert (-drop.drop_interval.low, drop.drop_interval.high) == (largest, largest)
    perfect = np.eye(2)[labels]
    best = paired_drop(task, outputs_of(perfect), task, outputs_of(perfect), examples)
    assert (best.drop_interval.low, best.drop_interval.high) == (0, pytest.approx(100 * 3 / NUM))  # no gain is possible
    few = paired_drop(task, outputs_of(found[:2]), task, outputs_of(found[:2]), examples[:2])
    assert few.drop_interval.high == 100
    assert drop.found_interval.low < drop.found < drop.found_interval.high


def regression() -> tuple[Task, list[Outputs], list[Outputs], list[Example]]:
    random = np.random.default_rng(0)
    truth = random.normal(size=NUM)
    found, reference = truth + random.normal(size=NUM), truth + 0.5 * random.normal(size=NUM)
    examples = [Example((TextInput("x"),), [value]) for value in truth]
    task = TextClassification(labels=("score",), problem_type="regression")
    return task, outputs_of(found[:, None]), outputs_of(reference[:, None]), examples


def multi_label() -> tuple[Task, list[Outputs], list[Outputs], list[Example]]:
    random = np.random.default_rng(0)
    truth = random.random((NUM, 3)) < 0.4
    found, reference = (np.where(truth, 2.0, -2.0) + scale * random.normal(size=truth.shape) for scale in (2.0, 1.0))
    examples = [Example((TextInput("x"),), np.flatnonzero(row).tolist()) for row in truth]
    task = TextClassification(labels=("a", "b", "c"), problem_type="multi_label", threshold=0.4)
    return task, outputs_of(found), outputs_of(reference), examples


@pytest.mark.parametrize("data", [regression, multi_label])
def test_metrics_are_those_of_the_task(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, found, reference, examples = data()
    monkeypatch.setattr(paired_bootstrap, "_RESAMPLES", 40)
    drop = paired_drop(task, found, task, reference, examples)
    assert drop.found == pytest.approx(task.score(found, examples)[task.metric])
    assert drop.reference == pytest.approx(task.score(reference, examples)[task.metric])
    assert drop.drop_interval.low < drop.drop_percent < drop.drop_interval.high
    monkeypatch.setattr(paired_bootstrap, "ratio_parts", lambda *given: None)  # what the task's metric gives
    slow = paired_drop(task, found, task, reference, examples)
    assert slow.drop_interval.high == pytest.approx(drop.drop_interval.high)
    assert slow.found_interval.low == pytest.approx(drop.found_interval.low)


@pytest.mark.parametrize("prefixes", ["BI", "BIES", "I"])
def test_entities_are_counted_in_every_tag_scheme(
    prefixes: str, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ("O", *(f"{prefix}-X" for prefix in prefixes))
    model = random_model(TokenClassification(labels=labels), toy_vocab, 32, len(labels))
    random = np.random.default_rng(0)
    records = [
        Record({"tokens": random.permutation(["hello", "my", "card"]).tolist(), "tags": tags}, Path("x"), number)
        for number, tags in enumerate(random.choice(labels, (60, 3)).tolist())
    ]
    examples = [model.task.example(record) for record in records]
    found = model.outputs([example.inputs[0] for example in examples])
    reference = [item._replace(arrays=tuple(array[:, ::-1] for array in item.arrays)) for item in found]
    test_metrics_are_those_of_the_task(lambda: (model.task, found, reference, examples), monkeypatch)


def test_the_interval_of_a_reranker_is_one_of_queries() -> None:
    """Lists of other lengths are no obstacle, and a query that is drawn twice is not one with twice the documents."""
    random = np.random.default_rng(0)
    examples, logits, inputs = [], [], []
    for number in range(200):
        grades = [1.0] + [0.0] * int(random.integers(1, 12))
        documents = tuple(TextInput(f"query {number}", f"document {index}") for index in range(len(grades)))
        examples.append(Example(documents, grades))
        inputs += documents
        logits += [grade + random.normal() for grade in grades]
    outputs = [
        output._replace(input=given)
        for output, given in zip(outputs_of(np.array(logits)[:, None]), inputs, strict=True)
    ]
    task = Reranking()
    drop = paired_drop(task, outputs, task, outputs, examples)
    ends = np.cumsum([len(example.inputs) for example in examples])
    alone = [
        task.score(outputs[end - len(example.inputs) : end], [example])["ndcg_at_10"]
        for end, example in zip(ends, examples, strict=True)
    ]
    error = 1.96 * np.std(alone) / len(alone) ** 0.5
    assert drop.found == pytest.approx(np.mean(alone))
    assert drop.found_interval.low == pytest.approx(drop.found - error, abs=0.006)
    assert drop.found_interval.high == pytest.approx(drop.found + error, abs=0.006)
    assert drop.drop_interval.high == pytest.approx(100 * 3 / 200 / drop.reference)  # three of the queries


def test_a_query_is_ranked_among_the_texts_of_all_rows() -> None:
    random = np.random.default_rng(0)
    queries = random.normal(size=(120, 8)).astype(np.float32)
    vectors = np.stack([queries, queries + random.normal(size=queries.shape)], axis=1).reshape(240, 8)
    inputs = [TextInput(f"text {row}") for row in range(240)]
    outputs = [output._replace(input=given) for output, given in zip(outputs_of(vectors), inputs, strict=True)]
    examples = [Example((inputs[2 * row], inputs[2 * row + 1]), inputs[2 * row + 1].text) for row in range(120)]
    task = SentenceEmbedding(dimensions=8, normalize=False)
    drop = paired_drop(task, outputs, task, outputs, examples)
    similarities = similarity_matrix(vectors[0::2], vectors[1::2])
    ranks = (similarities > similarities.diagonal()[:, None]).sum(axis=1)
    alone = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)
    assert (drop.metric, drop.found) == ("ndcg_at_10", pytest.approx(alone.mean()))
    error = 1.96 * alone.std() / 120**0.5
    assert drop.found_interval.low == pytest.approx(drop.found - error, abs=0.01)


def test_questions_about_one_context_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten questions that all models answer alike tell as much as one."""
    right = np.repeat(np.random.default_rng(0).random(100) < 0.7, 10).astype(float)
    examples = [Example((TextInput("question", f"context {row // 10}"),), None) for row in range(1000)]
    task, outputs = QuestionAnswering(), outputs_of(np.zeros((1000, 1)))
    monkeypatch.setattr(QuestionAnswering, "score", lambda *given: {task.metric: right.mean()})
    monkeypatch.setattr(paired_bootstrap, "ratio_parts", lambda *given: np.stack([right, np.ones(1000)], axis=1))
    drop = paired_drop(task, outputs, task, outputs, examples)
    error = 1.96 * (drop.found * (1 - drop.found) / 100) ** 0.5
    assert drop.found_interval.low == pytest.approx(drop.found - error, abs=0.02)
    assert drop.found_interval.high == pytest.approx(drop.found + error, abs=0.02)


def test_a_loss_needs_a_reference_above_zero() -> None:
    """An undefined metric is a total loss; of nothing, nothing can be lost."""
    task, found, reference, examples = regression()
    opposite, constant = ([output._replace(arrays=(sign * output.arrays[0],)) for output in found] for sign in (-1, 0))
    assert np.isnan(paired_drop(task, found, task, opposite, examples).drop_percent)
    assert paired_drop(task, constant, task, reference, examples).drop_percent == 100
