"""Classification and correlation metrics, by hand and compared with torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import (
    binary_f1_score,
    multiclass_accuracy,
    multiclass_f1_score,
    multilabel_f1_score,
)

from bert_runtime.metrics import accuracy, macro_f1, micro_f1, multi_label_macro_f1, pearson, spearman


def test_accuracy_by_hand() -> None:
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75


def test_macro_f1_by_hand() -> None:
    """Class 0: F1 1; class 1: precision 1, recall 1/2; class 2: precision 1/2, recall 1; class 3 never occurs."""
    found = macro_f1(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2]), num_classes=4)
    assert found == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_macro_f1_counts_a_class_that_is_only_predicted() -> None:
    assert macro_f1(np.array([0, 1]), np.array([0, 0]), num_classes=3) == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.parametrize("seed", range(5))
def test_classification_matches_torchmetrics(seed: int) -> None:
    generator = np.random.default_rng(seed)
    predicted, expected = generator.integers(0, 6, (2, 200))
    expected[generator.random(200) < 0.5] = predicted[0]  # unbalanced
    tensors = torch.from_numpy(predicted), torch.from_numpy(expected)
    assert accuracy(predicted, expected) == pytest.approx(
        float(multiclass_accuracy(*tensors, num_classes=8, average="micro"))
    )
    assert macro_f1(predicted, expected, 8) == pytest.approx(float(multiclass_f1_score(*tensors, num_classes=8)))


def test_micro_f1_of_one_label_is_the_binary_f1() -> None:
    """Two hits, one false alarm, two misses: 2·2 / (3 + 4)."""
    predicted = np.array([True, True, True, False, False, False])
    expected = np.array([True, True, False, True, True, False])
    assert micro_f1(predicted, expected) == pytest.approx(4 / 7)
    assert micro_f1(predicted, expected) == pytest.approx(
        float(binary_f1_score(torch.from_numpy(predicted).int(), torch.from_numpy(expected).int()))
    )
    assert micro_f1(~predicted & predicted, ~expected & expected) == 0


def test_multi_label_macro_f1_by_hand() -> None:
    """Label 0: one hit, one miss; label 1: right; label 2: never expected; label 3 never occurs and does not count."""
    predicted = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=bool)
    expected = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=bool)
    assert multi_label_macro_f1(predicted, expected) == pytest.approx((2 / 3 + 1 + 0) / 3)


@pytest.mark.parametrize("rows", [0, 3])
def test_multi_label_macro_f1_is_zero_where_no_label_occurs(rows: int) -> None:
    nothing = np.zeros((rows, 4), dtype=bool)
    assert multi_label_macro_f1(nothing, nothing) == 0


@pytest.mark.parametrize("seed", range(5))
def test_multi_label_macro_f1_matches_torchmetrics(seed: int) -> None:
    generator = np.random.default_rng(seed)
    predicted, expected = generator.random((2, 200, 6)) < np.linspace(0.05, 0.9, 6)
    expected[generator.random(200) < 0.5] = predicted[0]
    assert predicted.any(axis=0).all()
    tensors = torch.from_numpy(predicted).int(), torch.from_numpy(expected).int()
    found = float(multilabel_f1_score(*tensors, num_labels=6, average="macro"))
    assert multi_label_macro_f1(predicted, expected) == pytest.approx(found)


def test_spearman_by_hand() -> None:
    """One swap among four ranks: 1 − 6·2 / (4·15) = 0.8."""
    assert spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 30.0, 20.0, 40.0])) == pytest.approx(0.8)


def test_spearman_uses_mean_ranks_for_ties() -> None:
    """Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5."""
    found = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_spearman_depends_on_order_only() -> None:
    values = np.array([0.3, -2.0, 5.0, 1.0])
    assert spearman(values, np.exp(values)) == pytest.approx(1)
    assert spearman(values, -(values**3)) == pytest.approx(-1)


@pytest.mark.parametrize("distinct", [4, 1000], ids=["many ties", "few ties"])
@pytest.mark.parametrize("seed", range(3))
def test_correlations_match_torchmetrics(seed: int, distinct: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.integers(0, distinct, 300) / distinct
    y = x + generator.normal(0, 0.5, 300)
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    assert pearson(x, y) == pytest.approx(float(pearson_corrcoef(*tensors)), abs=1e-6)
    assert spearman(x, y) == pytest.approx(float(spearman_corrcoef(*tensors)), abs=1e-6)


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1 / 3])
def test_correlation_with_a_constant_is_nan(correlation: object, constant: float) -> None:
    """The mean of equal values may differ from them by a rounding error, which must not count as variance."""
    constants, values = np.full(7, constant), np.arange(7.0) ** 2
    assert callable(correlation)
    assert math.isnan(correlation(constants, values))
    assert math.isnan(correlation(values, constants))
