"""Temperature and vector scaling: the best of their kind, and honest on rows that were not fitted."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bert_runtime.metrics.probabilities import brier_score, negative_log_likelihood
from bert_runtime.numerics import softmax
from bert_runtime.score_calibration import (
    METHODS,
    LogitCalibration,
    cross_validate,
    fit_temperature,
    fit_vector_scaling,
)

Labels = NDArray[np.integer[Any]]


def draw(scale: float, num_labels: int = 4, biases: float = 0.0) -> tuple[NDArray[np.float32], Labels]:
    """Return logits [2000, labels] and labels drawn from the softmax of these logits times `scale` plus biases."""
    generator = np.random.default_rng(7)
    logits = generator.normal(size=(2000, num_labels)).astype(np.float32) * 3
    true = softmax(scale * logits.astype(np.float64) + biases * np.arange(num_labels))
    return logits, np.array([generator.choice(num_labels, p=row) for row in true])


@pytest.mark.parametrize("scale", [0.2, 0.5, 2.0])
def test_temperature_is_the_one_that_the_labels_were_drawn_with(scale: float) -> None:
    logits, labels = draw(scale)
    (found,) = fit_temperature(logits, labels).scales
    assert found == pytest.approx(scale, rel=0.1)
    losses = [negative_log_likelihood(softmax(logits * candidate), labels) for candidate in np.linspace(0.1, 3, 400)]
    assert negative_log_likelihood(softmax(logits * found), labels) <= min(losses) + 1e-6


def test_temperature_of_a_model_that_is_never_wrong_is_bounded() -> None:
    logits = np.eye(3, dtype=np.float32)[[0, 1, 2] * 20]
    assert 10 < fit_temperature(logits, logits.argmax(axis=1)).scales[0] <= 100
    assert fit_temperature(logits, (logits.argmax(axis=1) + 1) % 3).scales == (0.01,)


def test_vector_scaling_finds_biases_and_is_optimal() -> None:
    logits, labels = draw(0.7, biases=0.8)
    found = fit_vector_scaling(logits, labels)
    assert np.diff(found.biases) == pytest.approx(0.8, abs=0.3)
    scales, biases = (torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in found)
    loss = torch.nn.functional.cross_entropy(torch.tensor(logits).double() * scales + biases, torch.tensor(labels))
    ridge = 0.005 * (((scales - 1) ** 2).sum() + (biases**2).sum())
    (loss + ridge).backward()  # type: ignore[no-untyped-call]
    assert scales.grad is not None
    assert biases.grad is not None
    assert float(scales.grad.abs().max()) < 1e-6
    assert float(biases.grad.abs().max()) < 1e-6


def test_vector_scaling_of_a_label_without_rows_stays_bounded() -> None:
    logits, labels = draw(1.0)
    found = fit_vector_scaling(logits[labels != 3], labels[labels != 3])
    assert np.abs(found.biases).max() < 10


@pytest.mark.parametrize("method", METHODS)
def test_calibration_helps_on_rows_that_were_not_fitted(method: str) -> None:
    logits, labels = draw(0.3, biases=0.5)
    before = negative_log_likelihood(softmax(logits), labels)
    after = cross_validate(logits, labels, method, range(len(labels)))
    assert after["negative_log_likelihood"] < before - 0.1
    assert after["expected_calibration_error"] < 0.05


def test_rows_of_a_text_are_fitted_on_or_judged() -> None:
    """Vector scaling has a number for each of many labels, and learns rows that it sees again by heart."""
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(60, 10)), random.integers(10, size=60)
    once = cross_validate(logits, labels, "vector", range(60))
    five, texts = np.tile(logits, (5, 1)), [*range(60)] * 5
    again = cross_validate(five, np.tile(labels, 5), "vector", texts)
    apart = cross_validate(five, np.tile(labels, 5), "vector", range(300))
    assert apart["negative_log_likelihood"] < once["negative_log_likelihood"] - 0.1
    assert again["negative_log_likelihood"] == pytest.approx(once["negative_log_likelihood"], rel=1e-6)


def test_calibration_is_applied_in_the_width_of_the_logits() -> None:
    found = LogitCalibration((0.5,), (1.0, 0.0)).apply(np.array([[2.0, 4.0]], dtype=np.float32))
    assert found.dtype == np.float32
    assert found.tolist() == [[2.0, 2.0]]


def test_proper_scores_by_hand() -> None:
    probabilities, labels = np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([0, 0])
    assert brier_score(probabilities, labels) == pytest.approx((0.08 + 0.72) / 2)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(-np.log(0.8 * 0.4) / 2)
    assert negative_log_likelihood(np.array([[0.0, 1.0]]), np.array([0])) > 700
