"""Comparison of JSON answers whose numbers may differ by rounding."""

from typing import Any

import pytest


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Assert that two JSON values are equal, numbers with a fraction up to `tolerance`."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for part, value in zip(found, expected, strict=True):
            assert_close(part, value, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerance)
    else:
        assert found == expected
