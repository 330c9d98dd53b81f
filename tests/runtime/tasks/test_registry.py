"""Tasks: decoding, examples, metrics, agreement and settings."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tokenizers import Encoding

from bert_models import open_checkpoint
from bert_runtime.errors import BundleError, DataError
from bert_runtime.numerics import softmax
from bert_runtime.records import Record
from bert_runtime.similarity import cosine
from bert_runtime.tasks import (
    TASKS,
    Classification,
    Embedding,
    Example,
    FeatureExtraction,
    FillMask,
    NextSentencePrediction,
    Outputs,
    QuestionAnswering,
    ReplacedTokenDetection,
    Reranking,
    SentenceEmbedding,
    SparseEmbedding,
    Task,
    TextClassification,
    TextInput,
    TokenClassification,
    task_from_dict,
)

from ..outputs import outputs_of

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


def test_classification_keeps_scores_and_logits() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0], [6.0, 1.0, 1.0]], dtype=np.float32))
    first, second = map(COLOURS.decode, outputs_of(logits))
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
    (outputs,) = outputs_of(np.log([[2.0, 1.0, 4.0, 1.0]]))
    result = TextClassification(labels=("a", "b", "c", "d")).decode(outputs)
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
def test_invalid_classification_rows_are_reported(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^data.jsonl:3: {message}"):
        COLOURS.example(record(**fields))


def test_unknown_label_error_lists_at_most_ten_labels() -> None:
    task = TextClassification(labels=tuple(f"intent {i}" for i in range(77)))
    with pytest.raises(DataError, match=r"77 labels \(intent 0, .*, intent 9, …\)"):
        task.example(record(text="a", label="other"))


def test_classification_score() -> None:
    logits = np.array([[2.0, 1, 0], [0, 2, 1], [0, 1, 2], [0, 1, 2]])
    examples = [Example((TextInput("a"),), float(target)) for target in (0, 1, 1, 2)]
    assert COLOURS.score(outputs_of(logits), examples) == {
        "accuracy": 0.75,
        "macro_f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3),
    }
    assert COLOURS.probability_quality(outputs_of(logits), examples)["brier_score"] == pytest.approx(0.3903, abs=1e-4)


def test_classification_agreement() -> None:
    reference = np.array([[1.0, 0, 0], [0, 1, 0]], dtype=np.float32)
    drifted = reference + np.array([[0, 0.5, 0], [2, 0, 0]], dtype=np.float32)
    found = COLOURS.agreement(outputs_of(drifted), outputs_of(reference))
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
    first, second = map(SentenceEmbedding(dimensions=2).decode, outputs_of(vectors))
    assert isinstance(first, Embedding)
    assert isinstance(second, Embedding)
    assert first.to_dict() == {"embedding": vectors[0].tolist()}
    assert second.vector.tolist() == [1, 0]


def test_embedding_example_is_two_texts_and_a_score() -> None:
    task = SentenceEmbedding(dimensions=2)
    assert task.example(record(text="a", text_pair="b", score="4.5")) == Example((TextInput("a"), TextInput("b")), 4.5)
    for fields, message in (
        ({"text": "a", "score": 1}, "expected a field 'text_pair'"),
        ({"text": "a"}, "expected a field 'text_pair'"),
        ({"text": "a", "text_pair": "b", "score": "x"}, "expected a number in 'score', found 'x'"),
    ):
        with pytest.raises(DataError, match=f"^data.jsonl:3: {message}"):
            task.example(record(**fields))


def test_embedding_score_correlates_cosines_with_the_labels() -> None:
    """Outputs 0 and 1 are the first example's texts, 2 and 3 the second's, and so on."""
    angles = np.radians([0, 10, 0, 80, 0, 45])
    outputs = outputs_of(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    pair = (TextInput("a"), TextInput("b"))
    task = SentenceEmbedding(dimensions=2)
    agreed = task.score(outputs, [Example(pair, 5), Example(pair, 1), Example(pair, 3)])
    cosines = np.cos(np.radians([10, 80, 45]))
    assert agreed["spearman"] == pytest.approx(1)
    assert agreed["pearson"] == pytest.approx(np.corrcoef(cosines, [5, 1, 3])[0, 1])
    reversed_ = task.score(outputs, [Example(pair, 1), Example(pair, 5), Example(pair, 3)])
    assert reversed_["spearman"] == pytest.approx(-1)


def test_embedding_agreement() -> None:
    reference, outputs = outputs_of([[1.0, 0.0], [0.0, 1.0]]), outputs_of([[2.0, 0.0], [1.0, 1.0]])
    found = SentenceEmbedding(dimensions=2).agreement(outputs, reference)
    assert found == {
        "mean_cosine": pytest.approx((1 + math.sqrt(0.5)) / 2),
        "p1_cosine": pytest.approx(math.sqrt(0.5), abs=0.01),
        "min_cosine": pytest.approx(math.sqrt(0.5)),
    }


class Sample(NamedTuple):
    """A task, rows of labelled data for it, and the shape of a graph's output for one window."""

    task: Task
    rows: list[dict[str, Any]]
    shape: Callable[[Encoding], tuple[int, ...]]


TAGGED = {"tokens": ["hello", "bank"], "tags": ["O", "B-place"]}
SAMPLES: dict[str, Sample] = {
    "text-classification": Sample(COLOURS, [{"text": "a", "label": "red"}] * 6, lambda encoding: (3,)),
    "token-classification": Sample(
        TokenClassification(labels=("O", "B-place", "I-place")), [TAGGED] * 6, lambda encoding: (len(encoding), 3)
    ),
    "question-answering": Sample(
        QuestionAnswering(),
        [{"question": "where", "context": "at the bank", "answers": {"text": ["the bank"], "answer_start": [3]}}] * 6,
        lambda encoding: (len(encoding), 2),
    ),
    "fill-mask": Sample(
        FillMask(mask_token="[MASK]", mask_token_id=4),
        [{"text": "the [MASK] is late", "label": "bus"}] * 6,
        lambda encoding: (1, 150),
    ),
    "next-sentence-prediction": Sample(
        NextSentencePrediction(), [{"text": "a", "text_pair": "b", "label": "is_next"}] * 6, lambda encoding: (2,)
    ),
    "replaced-token-detection": Sample(
        ReplacedTokenDetection(),
        [TAGGED | {"tags": ["replaced", "original"]}] * 6,
        lambda encoding: (len(encoding),),
    ),
    "sentence-embedding": Sample(
        SentenceEmbedding(dimensions=3),
        [{"text": "a", "text_pair": "b", "score": score} for score in (1, 2, 3)],
        lambda encoding: (3,),
    ),
    "sparse-embedding": Sample(
        SparseEmbedding(vocab_size=5), [{"text": "a", "text_pair": text} for text in "bcd"], lambda encoding: (5,)
    ),
    "rerank": Sample(
        Reranking(), [{"query": "a", "documents": ["b", "c"], "scores": [1, 0]}] * 3, lambda encoding: (1,)
    ),
    "feature-extraction": Sample(FeatureExtraction(hidden_size=2, num_layers=3, layers=(3, 1)), [], lambda _: (4,)),
}


def test_every_task_is_sampled() -> None:
    assert {name: sample.task.name for name, sample in SAMPLES.items()} == {name: name for name in TASKS}


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.has_labels])
def test_score_and_agreement_have_the_deciding_keys(name: str, classifier_checkpoint: Path) -> None:
    task, rows, shape = SAMPLES[name]
    tokenizer = open_checkpoint(classifier_checkpoint).text_tokenizer(windows=task.windows)
    examples = [task.example(record(**row)) for row in rows]
    inputs = [value for example in examples for value in example.inputs]
    generator = np.random.default_rng(0)
    outputs = [
        Outputs(value, windows, tuple(generator.normal(size=shape(window)) for window in windows), tokenizer)
        for value, windows in zip(inputs, tokenizer.encode(inputs), strict=True)
    ]
    assert task.metric in task.score(outputs, examples)
    key, floor = task.agreement_floor
    assert task.agreement(outputs, outputs)[key] >= floor


def test_reads_first_token_only() -> None:
    assert COLOURS.reads_first_token_only
    assert SentenceEmbedding(dimensions=2, pooling="cls").reads_first_token_only
    assert not SentenceEmbedding(dimensions=2, pooling="mean").reads_first_token_only


@pytest.mark.parametrize(
    "task",
    [*(sample.task for sample in SAMPLES.values()), SentenceEmbedding(dimensions=7, pooling="cls", normalize=False)],
    ids=lambda task: task.name,
)
def test_settings_round_trip(task: Task) -> None:
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
        (EMBEDDER | {"dimensions": 0}, "expected dimensions to be a whole number of at least 1, found 0"),
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
def test_malformed_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        task_from_dict(settings)
