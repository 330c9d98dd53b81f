"""Gated projections and pre-norm: native kernels vs. the operators of their ONNX functions."""

from pathlib import Path

import numpy as np
import pytest

from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")

SIZES = [(8, 2), (32, 16), (96, 34), (64, 1152), (300, 100)]
"""[in features, outputs]"""
LEADING = [(1, 1), (1, 13), (2, 50)]
"""[batch, tokens]"""


def quantized_constants(rows: int, columns: int, max_weight: int = 127) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "weight": rng.integers(-max_weight, max_weight + 1, (rows, 2 * columns)).astype(np.int8),
        "x_scale": np.float32(0.02),
        "scales": rng.uniform(0.0005, 0.005, 2 * columns).astype(np.float32),
        "x_zero_point": np.uint8(110),
        "bias": rng.normal(size=2 * columns).astype(np.float32),
        "y_scale": np.float32(0.1),
        "y_zero_point": np.uint8(90),
    }


@pytest.mark.parametrize("activation", ["Gelu", "Silu"])
@pytest.mark.parametrize("max_weight", [64, 127])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.int8_operators
def test_quantized_gates_match_reference_within_one_step(
    rows: int, columns: int, max_weight: int, activation: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    xs = [rng.integers(0, 256, (*leading, rows)).astype(np.uint8) for leading in LEADING]
    constants = quantized_constants(rows, columns, max_weight)
    comparison = KernelComparison(f"QuantizedLinearGated{activation}", {"x": xs[0]}, constants, tmp_path)
    for x in xs:
        (actual,), (expected,) = comparison.outputs(x=x)
        assert actual.shape == (*x.shape[:-1], columns)
        max_difference, fraction = uint8_difference(actual, expected)
        assert max_difference <= 1, x.shape
        assert fraction < 0.01 or actual.size < 200, x.shape


@pytest.mark.parametrize("activation", ["Gelu", "Silu"])
@pytest.mark.parametrize(("rows", "columns"), [*SIZES, (7, 3)])
def test_float32_gates_match_reference(rows: int, columns: int, activation: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=(*leading, rows)).astype(np.float32) for leading in (*LEADING, (0, 3))]
    constants = {
        "weight": (rng.normal(size=(rows, 2 * columns)) / np.sqrt(rows)).astype(np.float32),
        "bias": rng.normal(size=2 * columns).astype(np.float32),
    }
    comparison = KernelComparison(f"LinearGated{activation}", {"x": xs[0]}, constants, tmp_path)
    for x in xs:
        (actual,), (expected,) = comparison.outputs(x=x)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_odd_number_of_columns_is_an_error(tmp_path: Path) -> None:
    constants = {"weight": np.ones((4, 5), np.float32), "bias": np.ones(5, np.float32)}
    with pytest.raises(Exception, match=r"expected a weight \[K, 2·N\], and 2·N biases"):
        KernelComparison("LinearGatedGelu", {"x": np.ones((1, 1, 4), np.float32)}, constants, tmp_path)


@pytest.mark.parametrize("columns", [1, 33, 768])
def test_pre_norm_returns_the_sum(columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    inputs: dict[str, Array] = {
        name: rng.normal(3.0, 2.0, (2, 17, columns)).astype(np.float32) for name in ("x", "residual")
    }
    vectors = {name: rng.normal(1.0, 0.5, columns).astype(np.float32) for name in ("gamma", "beta", "smoothing")}
    constants = {**vectors, "scale": np.float32(0.03), "zero_point": np.uint8(100)}
    comparison = KernelComparison("AddPreNormQuantize", inputs, constants, tmp_path, epsilon=1e-5)
    (total, quantized), (expected, expected_quantized) = comparison.outputs()
    np.testing.assert_array_equal(total, expected)
    max_difference, fraction = uint8_difference(quantized, expected_quantized)
    assert max_difference <= 1
    assert fraction < 0.01 or total.size < 200


def test_large_gates_saturate_and_nan_stays(tmp_path: Path) -> None:
    """SiLU of large numbers is the number or 0, and that of NaN is NaN."""
    x = np.array([[[-1e30, -200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 200.0, 1e30, np.nan]]], np.float32).reshape(1, 10, 1)
    constants = {"weight": np.array([[1.0, 0.0]], np.float32), "bias": np.array([0.0, 1.0], np.float32)}
    (actual,), (expected,) = KernelComparison("LinearGatedSilu", {"x": x}, constants, tmp_path).outputs()
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
