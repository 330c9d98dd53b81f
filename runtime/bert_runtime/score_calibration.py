"""Calibrated probabilities: a scale and a bias of the logits, fitted on labelled rows that are not of the training.

Temperature scaling divides all logits by one number, which changes no decision; vector scaling gives each label a
scale and a bias of its own (Guo et al., On Calibration of Modern Neural Networks, arXiv:1706.04599).
"""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_runtime.metrics import expected_calibration_error, reliability_bins
from bert_runtime.metrics.probabilities import brier_score, negative_log_likelihood
from bert_runtime.numerics import FloatArray, softmax

__all__ = [
    "METHODS",
    "LogitCalibration",
    "cross_validate",
    "fit_temperature",
    "fit_vector_scaling",
    "fold_numbers",
    "quality",
]

_MAX_STEPS = 100
_TOLERANCE = 1e-9
"""Size of the gradient at which a fit ends."""

_RIDGE = 1e-2
"""Pull of vector scaling to scale 1 and bias 0: labels without rows have no best bias otherwise. A judgement."""

_SCALES = (1e-2, 1e2)
"""Bounds of a scale: a model that is never wrong on the rows would have an infinite one."""

_FOLDS = 5


class LogitCalibration(NamedTuple):
    """A linear function of logits: they are multiplied by scales, then biases are added."""

    scales: tuple[float, ...]
    """One for all labels, or one for each."""
    biases: tuple[float, ...] = ()
    """One for each label, or none."""

    def apply(self, logits: FloatArray) -> FloatArray:
        """Return calibrated logits: float [..., labels] → same shape and dtype."""
        scaled = logits * np.array(self.scales, dtype=logits.dtype)
        return scaled + np.array(self.biases, dtype=logits.dtype) if self.biases else scaled


def fit_temperature(logits: FloatArray, expected: NDArray[np.integer[Any]]) -> LogitCalibration:
    """Fit the scale of all logits that makes the true labels most probable, by Newton's method.

    Args:
        logits: raw outputs of a single-label model [N, labels].
        expected: true labels [N].
    """
    logits = logits.astype(np.float64)
    scale, rows = 1.0, np.arange(len(expected))
    for _ in range(_MAX_STEPS):
        probabilities = softmax(scale * logits)
        means = np.sum(probabilities * logits, axis=1)
        slope = float(np.mean(means - logits[rows, expected]))
        curvature = float(np.mean(np.sum(probabilities * (logits - means[:, None]) ** 2, axis=1)))
        # No step changes the scale by more than a factor: far away, the curvature says little.
        step = slope / max(curvature, 1e-12)
        scale = float(np.clip(scale - step, max(scale / 2, _SCALES[0]), min(scale * 2, _SCALES[1])))
        if abs(slope) < _TOLERANCE or scale in _SCALES:
            break
    return LogitCalibration((scale,))


def fit_vector_scaling(logits: FloatArray, expected: NDArray[np.integer[Any]]) -> LogitCalibration:
    """Fit a scale and a bias per label, by Newton's method on the ridge-regularized likelihood.

    Args:
        logits: raw outputs of a single-label model [N, labels].
        expected: true labels [N].
    """
    values: NDArray[np.float64] = logits.astype(np.float64)
    num_labels = logits.shape[1]
    truth = np.eye(num_labels)[expected]
    start = np.concatenate([np.ones(num_labels), np.zeros(num_labels)])
    parameters: NDArray[np.float64] = start.copy()

    def loss(candidate: NDArray[np.float64]) -> float:
        probabilities = softmax(candidate[:num_labels] * values + candidate[num_labels:])
        return negative_log_likelihood(probabilities, expected) + _RIDGE / 2 * float(np.sum((candidate - start) ** 2))

    for _ in range(_MAX_STEPS):
        gradient, hessian = _derivatives(values, truth, parameters)
        gradient += _RIDGE * (parameters - start)
        if np.abs(gradient).max() < _TOLERANCE:
            break
        step = np.linalg.solve(hessian + _RIDGE * np.eye(2 * num_labels), gradient)
        parameters = _descend(loss, parameters, step.astype(np.float64))
    return LogitCalibration(tuple(parameters[:num_labels].tolist()), tuple(parameters[num_labels:].tolist()))


def _derivatives(
    logits: NDArray[np.float64], truth: NDArray[np.float64], parameters: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the gradient [2 · labels] and the Hessian of the mean negative log-likelihood, scales before biases."""
    num_rows, num_labels = logits.shape
    probabilities = softmax(parameters[:num_labels] * logits + parameters[num_labels:])
    error = (probabilities - truth) / num_rows
    gradient = np.concatenate([np.sum(error * logits, axis=0), error.sum(axis=0)])
    hessian = np.empty((2 * num_labels, 2 * num_labels))
    parts = (probabilities * logits, probabilities)  # derivatives of a row's mean logit by scales and by biases
    factors = (logits, np.ones_like(logits))
    for row, (left, left_factor) in enumerate(zip(parts, factors, strict=True)):
        for column, (right, right_factor) in enumerate(zip(parts, factors, strict=True)):
            block = -(left.T @ right) / num_rows
            block[np.diag_indices(num_labels)] += np.mean(probabilities * left_factor * right_factor, axis=0)
            first, second = row * num_labels, column * num_labels
            hessian[first : first + num_labels, second : second + num_labels] = block
    return gradient, hessian


def _descend(
    loss: Callable[[NDArray[np.float64]], float], parameters: NDArray[np.float64], step: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the parameters after as much of a Newton step as lowers the loss."""
    before, share = loss(parameters), 1.0
    while share > 1e-6:
        found = parameters - share * step
        if loss(found) <= before:
            return found
        share /= 2
    return parameters


METHODS: dict[str, Callable[[FloatArray, NDArray[np.integer[Any]]], LogitCalibration]] = {
    "temperature": fit_temperature,
    "vector": fit_vector_scaling,
}
"""Functions that fit a calibration, by the method's name."""


def quality(probabilities: FloatArray, expected: NDArray[np.integer[Any]]) -> dict[str, float]:
    """Return the calibration error, the Brier score and the negative log-likelihood of probabilities; lower is better.

    Args:
        probabilities: probability of each label [N, labels].
        expected: true labels [N].
    """
    bins = reliability_bins(probabilities.max(axis=1), probabilities.argmax(axis=1) == expected)
    return {
        "expected_calibration_error": expected_calibration_error(bins),
        "brier_score": brier_score(probabilities, expected),
        "negative_log_likelihood": negative_log_likelihood(probabilities, expected),
    }


def fold_numbers(texts: Sequence[Hashable], num_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row, int64 [rows], in random order; equal texts are in the same one."""
    different = list(dict.fromkeys(texts))
    random.Random(seed).shuffle(different)
    folds = {text: number % num_folds for number, text in enumerate(different)}
    return np.array([folds[text] for text in texts], dtype=np.int64)


def cross_validate(
    logits: FloatArray, expected: NDArray[np.integer[Any]], method: str, texts: Sequence[Hashable]
) -> dict[str, float]:
    """Return the `quality` and the accuracy that a method gives on texts that it was not fitted on, in five folds.

    Args:
        logits: raw outputs [N, labels].
        expected: true labels [N].
        method: a key of `METHODS`.
        texts: what the rows say [N], at least five different ones.
    """
    folds = fold_numbers(texts, _FOLDS, seed=0)
    calibrated = np.empty(logits.shape, dtype=np.float64)
    for fold in range(_FOLDS):
        held_out = folds == fold
        calibrated[held_out] = METHODS[method](logits[~held_out], expected[~held_out]).apply(logits[held_out])
    accuracy = float(np.mean(calibrated.argmax(axis=1) == expected))
    return {"accuracy": accuracy, **quality(softmax(calibrated), expected)}
