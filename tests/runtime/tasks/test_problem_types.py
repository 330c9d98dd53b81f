"""Multi-label classification, regression and next-sentence prediction: decoding, metrics and examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multilabel_f1_score

from bert_runtime.errors import DataError, InputError
from bert_runtime.metrics import micro_f1
from bert_runtime.numerics import sigmoid
from bert_runtime.records import Record
from bert_runtime.tasks import (
    MultiLabelClassification,
    NextSentence,
    NextSentencePrediction,
    Outputs,
    TextClassification,
    TextInput,
    task_from_dict,
)

from ..outputs import outputs_of

LABELS = ("red", "green", "blue")
MULTI = TextClassification(labels=LABELS, problem_type="multi_label")
NUMBER = TextClassification(labels=("score",), problem_type="regression")
PAIRS = NextSentencePrediction()


def row(**fields: Any) -> Record:
    return Record({"text": "a", **fields}, Path("some.jsonl"), 7)


def logit(*probabilities: float) -> Outputs:
    p = np.array(probabilities)
    (outputs,) = outputs_of(np.log(p / (1 - p)).astype(np.float32)[None])
    return outputs


def test_sigmoid_is_exact_and_does_not_overflow() -> None:
    found = sigmoid(np.array([-1000.0, -2.0, 0.0, 2.0, 1000.0], dtype=np.float32))
    assert found.dtype == np.float32
    assert np.allclose(found, [0, 1 / (1 + np.exp(2)), 0.5, 1 / (1 + np.exp(-2)), 1])


def test_multi_label_returns_labels_above_threshold_best_first() -> None:
    answer = MULTI.decode(logit(0.6, 0.1, 0.9))
    assert isinstance(answer, MultiLabelClassification)
    assert [label for label, _ in answer.chosen] == ["blue", "red"]
    assert answer.to_dict()["labels"][0] == {"label": "blue", "score": pytest.approx(0.9, abs=1e-6)}
    assert MULTI.decode(logit(0.1, 0.2, 0.3)).to_dict() == {"labels": []}


def test_agreement_of_several_labels_is_that_of_all_of_a_text() -> None:
    task = TextClassification(labels=tuple("abcd"), problem_type="multi_label")
    expected = outputs_of([[1.0, -1, -1, -1]] * 4)
    nothing = outputs_of([[-1.0, -1, -1, -1]] * 3 + [[1.0, -1, -1, -1]])
    assert task.agreement(nothing, expected)["label_agreement"] == 0.25


def test_thresholds_per_label() -> None:
    task = TextClassification(labels=LABELS, problem_type="multi_label", thresholds=(0.7, 0.05, 0.95))
    answer = task.decode(logit(0.6, 0.1, 0.9))
    assert isinstance(answer, MultiLabelClassification)
    assert [label for label, _ in answer.chosen] == ["green"]
    assert task_from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thresholds": (0.5,)}, "expected 3 thresholds, one per label, found 1"),
        ({"threshold": 1.5}, "expected threshold to be a number in 0 to 1, found 1.5"),
        ({"problem_type": "ranking"}, "expected a problem type of single_label, multi_label, regression"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextClassification(**{"labels": LABELS, "problem_type": "multi_label", **settings})


def test_multi_label_metrics_agree_with_torchmetrics() -> None:
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((40, 3)).astype(np.float32)
    truth = generator.random((40, 3)) < 0.4
    examples = [MULTI.example(row(labels=[LABELS[i] for i in np.flatnonzero(labels)])) for labels in truth]
    scores = MULTI.score(outputs_of(logits), examples)
    for average in ("micro", "macro"):
        expected = multilabel_f1_score(torch.tensor(logits), torch.tensor(truth).long(), num_labels=3, average=average)
        assert scores[f"{average}_f1"] == pytest.approx(float(expected))
    assert scores["exact_match"] == pytest.approx(float(((logits >= 0) == truth).all(axis=1).mean()))
    assert micro_f1(np.zeros(3, dtype=bool), np.zeros(3, dtype=bool)) == 0.0


def test_multi_label_examples() -> None:
    assert MULTI.example(row(labels=["blue", "red"])).target == [2, 0]
    assert MULTI.example(row(labels="blue, red")).target == [2, 0]
    assert MULTI.example(row(label="green")).target == [1]
    assert MULTI.example(row(labels=[])).target == []
    with pytest.raises(DataError, match=r"some\.jsonl:7: label 'pink' is not one of"):
        MULTI.example(row(labels=["pink"]))
    with pytest.raises(DataError, match=r"some\.jsonl:7: expected 'labels' to be a list of names"):
        MULTI.example(row(labels=[1.5]))


def test_regression_returns_raw_outputs() -> None:
    (outputs,) = outputs_of(np.array([[3.25]], dtype=np.float32))
    answer = NUMBER.decode(outputs)
    assert answer.to_dict() == {"label": "score", "score": 3.25}
    two = TextClassification(labels=("valence", "arousal"), problem_type="regression")
    assert two.decode(outputs_of([[1.0, 2.0]])[0]).to_dict() == {"scores": {"valence": 1.0, "arousal": 2.0}}


def test_regression_metrics() -> None:
    examples = [NUMBER.example(row(score=value)) for value in (1, 2, 3)]
    scores = NUMBER.score(outputs_of([[1.5], [2.0], [9.0]]), examples)
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["mean_squared_error"] == pytest.approx((0.25 + 0 + 36) / 3)
    assert NUMBER.metric == "spearman"
    agreed = NUMBER.agreement(outputs_of([[1.0], [2.0]]), outputs_of([[1.0], [2.5]]))
    assert agreed["pearson"] == pytest.approx(1.0)


def test_next_sentence_prediction() -> None:
    first, second = map(PAIRS.decode, outputs_of(np.array([[2.0, -1.0], [0.0, 1.0]], dtype=np.float32)))
    assert isinstance(first, NextSentence)
    assert isinstance(second, NextSentence)
    assert (first.label, second.label) == ("is_next", "not_next")
    assert first.score == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-6)
    example = PAIRS.example(row(text_pair="b", label="not_next"))
    assert example == ((TextInput("a", "b"),), 1)
    with pytest.raises(DataError, match="expected a label of is_next, not_next, found 'maybe'"):
        PAIRS.example(row(text_pair="b", label="maybe"))
    with pytest.raises(DataError, match="expected a field 'text_pair'"):
        PAIRS.example(row(label="is_next"))
    assert PAIRS.input_error(TextInput("a", "b"), ()) is None
    assert PAIRS.input_error(TextInput("a"), ()) == "expected a pair of texts, found one text"
    assert PAIRS.sample_inputs(["a", "b"]) == [TextInput("a", "b"), TextInput("b", "a")]


def test_threshold_is_an_option_of_multi_label_models_only() -> None:
    with pytest.raises(InputError, match="text-classification has the options top_k, found threshold"):
        TextClassification(labels=("a", "b")).with_options(threshold=0.9)
    several = TextClassification(labels=("a", "b"), problem_type="multi_label", thresholds=(0.1, 0.2))
    assert several.with_options(threshold=0.9).thresholds == ()
    assert several.with_options(thresholds=[0.3, 0.4]).thresholds == (0.3, 0.4)


def test_model_of_several_numbers_cannot_be_evaluated() -> None:
    task = TextClassification(labels=("a", "b"), problem_type="regression")
    with pytest.raises(DataError, match=r"x\.csv:1: the model predicts 2 numbers \(a, b\)"):
        task.example(Record({"text": "t", "score": "1"}, Path("x.csv"), 1))
