"""Reliability bins and the expected calibration error, by hand and compared with torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from bert_runtime.metrics import expected_calibration_error, reliability_bins


def test_by_hand() -> None:
    """0.9 comes true in one of two cases, 0.2 never."""
    bins = reliability_bins(np.array([0.9, 0.2, 0.9]), np.array([True, False, False]), num_bins=10)
    assert [(item.lower, item.upper, item.count) for item in bins] == [(0.1, 0.2, 1), (pytest.approx(0.8), 0.9, 2)]
    assert [item.frequency for item in bins] == [0, 0.5]
    assert expected_calibration_error(bins) == pytest.approx((2 * 0.4 + 0.2) / 3)


def test_the_ends_of_the_range_are_in_the_outer_bins() -> None:
    bins = reliability_bins(np.array([0.0, 1.0]), np.array([False, True]))
    assert [(item.lower, item.upper) for item in bins] == [(0.0, pytest.approx(1 / 15)), (pytest.approx(14 / 15), 1.0)]
    assert expected_calibration_error(bins) == 0


def test_no_predictions_have_no_error() -> None:
    assert reliability_bins(np.empty(0), np.empty(0, dtype=bool)) == []
    assert math.isnan(expected_calibration_error([]))


@pytest.mark.parametrize("num_bins", [10, 15])
def test_matches_torchmetrics(num_bins: int) -> None:
    generator = np.random.default_rng(num_bins)
    probabilities = generator.random(500).astype(np.float32)
    outcomes = generator.random(500) < probabilities**2
    expected = binary_calibration_error(torch.tensor(probabilities), torch.tensor(outcomes.astype(int)), num_bins)
    found = expected_calibration_error(reliability_bins(probabilities, outcomes, num_bins))
    assert found == pytest.approx(float(expected), abs=1e-6)
