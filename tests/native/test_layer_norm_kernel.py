"""Residual + LayerNorm + quantization (AddNormQuantize): native kernel vs. the operators of its ONNX function."""

from pathlib import Path

import numpy as np
import pytest

from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.mark.parametrize("columns", [1, 16, 33, 384, 1000])
@pytest.mark.parametrize("leading", [(1, 1), (1, 7), (1, 12), (2, 13), (1, 95), (3, 33), (8, 128)], ids=str)
def test_layer_norm_matches_reference(leading: tuple[int, ...], columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    inputs: dict[str, Array] = {
        name: rng.normal(3.0, 2.0, (*leading, columns)).astype(np.float32) for name in ("x", "residual")
    }
    vectors = {name: rng.normal(1.0, 0.5, columns).astype(np.float32) for name in ("gamma", "beta", "smoothing")}
    constants = {**vectors, "scale": np.float32(0.03), "zero_point": np.uint8(100)}
    comparison = KernelComparison("AddNormQuantize", inputs, constants, tmp_path, epsilon=1e-12)
    (actual, actual_quantized), (expected, expected_quantized) = comparison.outputs()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)
    max_difference, fraction = uint8_difference(actual_quantized, expected_quantized)
    assert max_difference <= 1
    assert fraction < 0.01 or actual.size < 200


@pytest.mark.parametrize("columns", [1, 33, 384])
@pytest.mark.parametrize("leading", [(1, 1), (1, 12), (3, 33), (0, 4)], ids=str)
@pytest.mark.parametrize("name", ["AddNorm", "AddPreNorm"])
def test_layer_norm_without_quantization_matches_reference(
    name: str, leading: tuple[int, ...], columns: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    inputs: dict[str, Array] = {
        name: rng.normal(3.0, 2.0, (*leading, columns)).astype(np.float32) for name in ("x", "residual")
    }
    constants = {name: rng.normal(1.0, 0.5, columns).astype(np.float32) for name in ("gamma", "beta")}
    outputs = KernelComparison(name, inputs, constants, tmp_path, epsilon=1e-12).outputs()
    for actual, expected in zip(*outputs, strict=True):
        assert actual.shape == (*leading, columns)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_inputs_of_two_shapes_are_an_error(tmp_path: Path) -> None:
    ones = np.ones(32, dtype=np.float32)
    constants: dict[str, Array] = dict.fromkeys(("gamma", "beta", "smoothing"), ones)
    constants |= {"scale": np.asarray(np.float32(0.1)), "zero_point": np.asarray(np.uint8(0))}
    x = np.ones((2, 3, 32), dtype=np.float32)
    comparison = KernelComparison("AddNormQuantize", {"x": x, "residual": x}, constants, tmp_path, epsilon=1e-12)
    with pytest.raises(Exception, match="of one shape"):
        comparison.outputs(residual=x.reshape(3, 2, 32))
