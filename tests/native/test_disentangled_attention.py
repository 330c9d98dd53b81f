"""Attention with scores of relative positions: native kernels vs. the operators of their ONNX functions."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")

SHAPES = [(1, 1, 1, 8, 1, 3), (1, 2, 12, 32, 5, 4), (2, 13, 2, 16, 13, 4), (3, 33, 4, 20, 40, 60),
          (1, 64, 2, 64, 64, 8), (2, 100, 3, 64, 128, 256), (1, 512, 1, 128, 512, 256), (1, 200, 1, 7, 512, 3),
]  # fmt: skip
"""[batch, tokens, heads, head size], tokens that there are indices for, positions on either side"""

FUNCTIONS = ("DisentangledAttention", "QuantizedDisentangledAttention")


def disentangled_attention(
    function: str, batch: int, tokens: int, heads: int, head_size: int, max_tokens: int, span: int, folder: Path,
    std: float = 1.0,
) -> tuple[dict[str, Array], KernelComparison]:  # fmt: skip
    """Return random inputs, with a mask of sequences of random lengths, and the call with random positions."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, tokens + 1, batch)
    mask = (np.arange(tokens) < lengths[:, None])[:, None, None]
    inputs = {
        "qkv": rng.normal(scale=std, size=(batch, tokens, 3 * heads * head_size)).astype(np.float32),
        "mask": np.broadcast_to(mask, (batch, 1, tokens, tokens)).copy(),
    }
    tables = rng.normal(scale=std * (3 * head_size) ** -0.5, size=(2, heads, 2 * span, head_size)).astype(np.float32)
    descending, ascending = np.arange(max_tokens - 1, -max_tokens - 1, -1), np.arange(1 - max_tokens, max_tokens + 1)
    constants = {
        "position_keys": tables[0],
        "position_queries": tables[1],
        "key_indices": np.clip(descending + span, 0, 2 * span - 1),
        "query_indices": np.clip(ascending + span, 0, 2 * span - 1),
    }
    if "Quantized" in function:
        constants |= {"y_scale": np.float32(0.02 * std), "y_zero_point": np.uint8(128)}
    scale = float((3 * head_size) ** -0.5)
    return inputs, KernelComparison(function, inputs, constants, folder, num_heads=heads, scale=scale)


def assert_close(function: str, actual: Array, expected: Array) -> None:
    if "Quantized" in function:
        max_difference, fraction = uint8_difference(actual, expected)
        assert max_difference <= 1
        assert fraction < 0.05 or actual.size < 200
    else:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full", [True, False], ids=["full", "masked"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_kernel_matches_reference(function: str, shape: tuple[int, ...], full: bool, tmp_path: Path) -> None:
    inputs, comparison = disentangled_attention(function, *shape, tmp_path)
    mask = inputs["mask"] | full
    (actual,), (expected,) = comparison.outputs(mask=mask)
    batch, tokens, heads, head_size, *_ = shape
    assert actual.shape == (batch, tokens, heads * head_size)
    assert_close(function, actual, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_scores_of_hundreds_match_reference(function: str, tmp_path: Path) -> None:
    _, comparison = disentangled_attention(function, 2, 60, 2, 64, 64, 16, tmp_path, std=6.0)
    (actual,), (expected,) = comparison.outputs()
    if "Quantized" in function:
        assert_close(function, actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("holes", [True, False])
def test_masked_tokens_change_nothing(function: str, holes: bool, tmp_path: Path) -> None:
    inputs, comparison = disentangled_attention(function, 1, 40, 2, 32, 64, 8, tmp_path)
    attended = np.arange(40) % 3 != 1 if holes else np.arange(40) < 17
    mask = np.broadcast_to(attended, (1, 1, 40, 40)).copy()
    (before,), _ = comparison.outputs(mask=mask)
    qkv = inputs["qkv"].copy()
    qkv[:, ~attended, 64:] = np.nan
    (after,), _ = comparison.outputs(mask=mask, qkv=qkv)
    np.testing.assert_array_equal(before[:, attended], after[:, attended])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_queries_without_keys_get_zeros(function: str, tmp_path: Path) -> None:
    inputs, comparison = disentangled_attention(function, 2, 4, 2, 16, 4, 4, tmp_path)
    inputs["mask"][1] = False
    (actual,), _ = comparison.outputs(mask=inputs["mask"])
    assert (actual[1] == (128 if "Quantized" in function else 0)).all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_more_tokens_than_indices_are_an_error(function: str, tmp_path: Path) -> None:
    _, comparison = disentangled_attention(function, 1, 8, 2, 16, 8, 4, tmp_path)
    long = {"qkv": np.ones((1, 9, 96), np.float32), "mask": np.ones((1, 1, 9, 9), np.bool_)}
    with pytest.raises(InvalidArgument, match="expected at most M tokens"):
        comparison.outputs(**long)
