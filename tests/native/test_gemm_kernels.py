"""Linear layers (GEMM + bias [+ GELU], int8 and float32): native kernels vs. the operators of their ONNX functions."""

from pathlib import Path

import numpy as np
import pytest

from .kernel_comparison import Array, KernelComparison, resident_weights_kb, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")


def int8_linear(leading: tuple[int, ...], k: int, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return x [*leading, k], and the constants of QuantizedLinear with a weight [k, n]."""
    rng = np.random.default_rng(0)
    x = {"x": rng.integers(0, 256, (*leading, k), dtype=np.uint8)}
    return x, {
        "weight": rng.integers(-128, 128, (k, n), dtype=np.int8),
        "x_scale": np.float32(0.02),
        "scales": rng.uniform(1e-4, 2e-3, n).astype(np.float32),
        "x_zero_point": np.uint8(117),
        "bias": rng.normal(size=n).astype(np.float32),
    }


LEADING = [(1, 1), (1, 7), (1, 12), (2, 13), (1, 95), (3, 33), (3, 299), (8, 128)]
"""[batch, tokens]: below, at and above the rows of a tile and of a row block."""
SIZES = [(4, 1), (32, 32), (64, 33), (388, 100), (96, 1551)]
"""[K, N]: whole and partial panels."""


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.int8_operators
def test_int8_matmul_matches_reference(size: tuple[int, int], tmp_path: Path) -> None:
    comparison = KernelComparison("QuantizedLinear", *int8_linear(LEADING[-1], *size), tmp_path)
    for leading in LEADING:
        (actual,), (expected,) = comparison.outputs(**int8_linear(leading, *size)[0])
        assert actual.shape == (*leading, size[1])
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5 * float(np.abs(expected).max()), err_msg=str(leading))


@pytest.mark.parametrize("weight", [-128, -65, -64, 64, 65, 127])
@pytest.mark.parametrize("activation", [0, 255])
def test_int8_matmul_of_extreme_values_does_not_saturate(activation: int, weight: int, tmp_path: Path) -> None:
    """On AVX2, weights from -64 to 64 take another dot product (DotU8S7) than all others."""
    _, constants = int8_linear((2, 5), 3072, 64)
    constants["weight"] = np.full_like(constants["weight"], weight)
    x = np.full((2, 5, 3072), activation, dtype=np.uint8)
    comparison = KernelComparison("QuantizedLinear", {"x": x}, constants, tmp_path)
    (actual,), _ = comparison.outputs()
    exact = (activation - 117) * 0.02 * weight * 3072.0 * constants["scales"] + constants["bias"]
    np.testing.assert_allclose(actual, np.broadcast_to(exact, actual.shape), rtol=1e-5)


def test_int8_matmul_of_the_largest_k_does_not_overflow(tmp_path: Path) -> None:
    """65,792 · 255 · 128 is just below 2³¹."""
    _, constants = int8_linear((1, 1), 65_792, 3)
    constants |= {"weight": np.full((65_792, 3), -128, np.int8), "x_zero_point": np.uint8(0)}
    x = np.full((1, 1, 65_792), 255, dtype=np.uint8)
    (actual,), _ = KernelComparison("QuantizedLinear", {"x": x}, constants, tmp_path).outputs()
    exact = 255 * 0.02 * -128.0 * 65_792 * constants["scales"] + constants["bias"]
    np.testing.assert_allclose(actual[0, 0], exact, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.int8_operators
def test_int8_matmul_with_7_bit_weights_matches_reference(size: tuple[int, int], tmp_path: Path) -> None:
    inputs, constants = int8_linear(LEADING[-1], *size)
    constants["weight"] = np.clip(constants["weight"], -64, 64)
    comparison = KernelComparison("QuantizedLinear", inputs, constants, tmp_path)
    for leading in LEADING:
        (actual,), (expected,) = comparison.outputs(**int8_linear(leading, *size)[0])
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4, err_msg=str(leading))


def test_packed_weights_that_differ_in_one_byte_are_not_shared(tmp_path: Path) -> None:
    inputs, constants = int8_linear((1, 3), 64, 70)
    other = constants["weight"].copy()
    other[63, 69] ^= 1
    comparisons = [
        KernelComparison("QuantizedLinear", inputs, {**constants, "weight": weight}, tmp_path)
        for weight in (constants["weight"], other, constants["weight"])
    ]
    first, second, third = (comparison.outputs()[0][0] for comparison in comparisons)
    np.testing.assert_array_equal(first, third)
    np.testing.assert_array_equal(first[..., :69], second[..., :69])
    assert (first[..., 69] != second[..., 69]).all()
    del comparisons[0]  # a shared weight lives as long as one session uses it
    np.testing.assert_array_equal(comparisons[-1].outputs()[0][0], first)


def test_empty_batch(tmp_path: Path) -> None:
    comparison = KernelComparison("QuantizedLinear", *int8_linear((0, 4), 32, 48), tmp_path)
    (actual,), _ = comparison.outputs()
    assert actual.shape == (0, 4, 48)


def test_input_of_another_width_is_an_error(tmp_path: Path) -> None:
    comparison = KernelComparison("QuantizedLinear", *int8_linear((1, 4), 32, 48), tmp_path)
    with pytest.raises(Exception, match=r"expected an input \[.., K\] for a weight \[K, N\]"):
        comparison.outputs(x=np.zeros((1, 4, 36), dtype=np.uint8))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.int8_operators
def test_quantized_gelu_matches_reference_within_one_step(size: tuple[int, int], tmp_path: Path) -> None:
    inputs, constants = int8_linear(LEADING[-1], *size)
    exact = np.abs((inputs["x"].astype(np.float64) - 117) @ constants["weight"]).max() * 0.02
    constants["scales"] = constants["scales"] * np.float32(5 / (exact * 1e-3))  # matmul outputs from -10 to 10
    constants |= {"y_scale": np.float32(0.03), "y_zero_point": np.uint8(6)}
    comparison = KernelComparison("QuantizedLinearGelu", inputs, constants, tmp_path)
    for leading in LEADING:
        (actual,), (expected,) = comparison.outputs(**int8_linear(leading, *size)[0])
        assert actual.shape == (*leading, size[1])
        max_difference, fraction = uint8_difference(actual, expected)
        assert max_difference <= 1, leading
        assert fraction < 0.01 or actual.size < 200, leading


def test_values_above_range_saturate_to_255(tmp_path: Path) -> None:
    inputs, constants = int8_linear((1, 1), 4, 3)
    constants["bias"] = np.array([1e30, np.inf, -1e30], dtype=np.float32)
    constants |= {"y_scale": np.float32(1e-3), "y_zero_point": np.uint8(6)}
    comparison = KernelComparison("QuantizedLinearGelu", inputs, constants, tmp_path)
    (actual,), _ = comparison.outputs()
    assert actual.tolist() == [[[255, 255, 6]]]


def test_quantized_gelu_is_within_1e_4_of_exact_gelu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    _, constants = int8_linear((1, 1), 4, 1)
    x = np.linspace(-12, 12, 200_001, dtype=np.float32)
    constants |= {"weight": np.zeros((4, len(x)), dtype=np.int8), "scales": np.zeros_like(x), "bias": x}
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    for scale, zero_point in ((1e-3, 170), (4e-3, 43), (0.013, 13), (0.05, 4)):  # up to 12, ever more coarsely
        output = {"y_scale": np.float32(scale), "y_zero_point": np.uint8(zero_point)}
        zeros = np.zeros((1, 1, 4), dtype=np.uint8)
        comparison = KernelComparison("QuantizedLinearGelu", {"x": zeros}, constants | output, tmp_path)
        (actual,), _ = comparison.outputs()
        values = (actual[0, 0].astype(float) - zero_point) * scale
        inside = (actual[0, 0] > 0) & (actual[0, 0] < 255)
        assert inside.sum() > 1000
        assert np.abs(values - exact)[inside].max() <= 0.5 * scale + 1e-4
        assert (actual[0, 0][exact > (255.6 - zero_point) * scale] == 255).all()


@pytest.mark.parametrize("size", [(1, 1), (5, 32), (64, 33), (387, 100), (96, 1551), (1100, 300)], ids=str)
@pytest.mark.parametrize("name", ["Linear", "LinearGelu"])
def test_float32_matmul_matches_reference(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(*leading, size[0])).astype(np.float32) for leading in LEADING]
    weight = rng.normal(scale=size[0] ** -0.5, size=size).astype(np.float32)
    constants = {"weight": weight, "bias": rng.normal(size=size[1]).astype(np.float32)}
    comparison = KernelComparison(name, {"x": xs[0]}, constants, tmp_path)
    for x in xs:
        (actual,), (expected,) = comparison.outputs(x=x)
        assert actual.shape == (*x.shape[:-1], size[1])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)  # the order of summation differs


def test_float32_gelu_is_within_1e_6_of_exact_gelu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-12, 12, 200_001, dtype=np.float32)
    x[:5] = -np.inf, -1e30, np.inf, 1e30, np.nan
    zeros = {"x": np.zeros((1, 1, 1), dtype=np.float32)}
    constants = {"weight": np.zeros((1, len(x)), dtype=np.float32), "bias": x}
    (output,), _ = KernelComparison("LinearGelu", zeros, constants, tmp_path).outputs()
    actual = output[0, 0]
    np.testing.assert_allclose(actual[:2], 0, atol=1e-6)
    np.testing.assert_array_equal(actual[2:4], x[2:4])
    assert np.isnan(actual[4])
    exact = torch.nn.functional.gelu(torch.from_numpy(x[5:]).double()).numpy()
    np.testing.assert_allclose(actual[5:], exact, rtol=1e-7, atol=1e-6)


@pytest.mark.int8_operators
def test_packing_releases_mapped_pages_of_the_weight(tmp_path: Path) -> None:
    """The weight file is intact after that: a second session packs it again."""
    weight = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    inputs, constants = {"x": np.eye(1024, dtype=np.float32)[None]}, {"weight": weight, "bias": weight[0]}
    for _ in range(2):
        comparison = KernelComparison("Linear", inputs, constants, tmp_path)
        (actual,), (expected,) = comparison.outputs()
        np.testing.assert_array_equal(actual, expected)
        assert max(resident_weights_kb()) < 100
