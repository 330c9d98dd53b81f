"""Mean pooling and attention of the first token: native kernels vs. the operators of their ONNX functions."""

from pathlib import Path

import numpy as np
import pytest

from .kernel_comparison import Array, KernelComparison

pytestmark = pytest.mark.usefixtures("native_library")

SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 1, 8), (1, 16, 12, 32), (3, 33, 4, 20), (2, 130, 12, 64), (1, 700, 2, 7)], ids=str
)
"""[batch, tokens, heads, head size]"""
KINDS = ("full", "right", "left", "holes", "none")
"""Kinds of masks."""
POOLS = pytest.mark.parametrize("function", ["MeanPool", "MeanPoolNormalize"])


def mask_of(kind: str, batch: int, tokens: int) -> Array:
    """Return a mask int64 [batch, tokens]; every sequence but those of `none` has a token."""
    lengths = np.random.default_rng(2).integers(1, tokens + 1, batch)
    right = np.arange(tokens) < lengths[:, None]
    kinds = {"full": right | True, "right": right, "left": right[:, ::-1], "none": right & False,
             "holes": np.broadcast_to(np.arange(tokens) % 3 != 1, right.shape)}  # fmt: skip
    return np.ascontiguousarray(kinds[kind]).astype(np.int64)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@SHAPES
@POOLS
def test_mean_matches_reference(function: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    batch, tokens, heads, head_size = shape
    inputs = {"x": numbers(batch, tokens, heads * head_size), "mask": mask_of("full", batch, tokens)}
    comparison = KernelComparison(function, inputs, {}, tmp_path)
    for kind in KINDS:
        (actual,), (expected,) = comparison.outputs(mask=mask_of(kind, batch, tokens))
        assert actual.shape == (batch, heads * head_size)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6, err_msg=kind)
        if kind == "none":
            assert (actual == 0).all()


@POOLS
def test_padding_is_not_pooled(function: str, tmp_path: Path) -> None:
    inputs = {"x": numbers(2, 40, 100), "mask": mask_of("holes", 2, 40).astype(np.bool_)}
    comparison = KernelComparison(function, inputs, {}, tmp_path)
    (before,), _ = comparison.outputs()
    changed = inputs["x"].copy()
    changed[~inputs["mask"]] = np.nan
    np.testing.assert_array_equal(comparison.outputs(x=changed)[0][0], before)


@SHAPES
@pytest.mark.parametrize("dtype", [np.bool_, np.int64])
def test_first_token_attention_matches_reference(
    dtype: type[np.generic], shape: tuple[int, ...], tmp_path: Path
) -> None:
    batch, tokens, heads, head_size = shape
    width = heads * head_size
    inputs = {"query": numbers(batch, 1, width), "kv": numbers(batch, tokens, 2 * width)}
    inputs["mask"] = mask_of("full", batch, tokens).astype(dtype)
    comparison = KernelComparison("FirstTokenAttention", inputs, {}, tmp_path, num_heads=heads, scale=head_size**-0.5)
    for kind in KINDS:
        (actual,), (expected,) = comparison.outputs(mask=mask_of(kind, batch, tokens).astype(dtype))
        assert actual.shape == (batch, 1, width)
        if kind == "none":
            assert (actual == 0).all()
        else:
            np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6, err_msg=kind)


@pytest.mark.parametrize("value", [50.0, 1e30, np.inf, np.nan])
def test_padding_is_not_attended_to(value: float, tmp_path: Path) -> None:
    inputs = {"query": numbers(2, 1, 64), "kv": numbers(2, 50, 128), "mask": mask_of("holes", 2, 50)}
    comparison = KernelComparison("FirstTokenAttention", inputs, {}, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = comparison.outputs()
    changed = inputs["kv"].copy()
    changed[inputs["mask"] == 0] = value
    np.testing.assert_array_equal(comparison.outputs(kv=changed)[0][0], before)


def test_nan_in_a_key_reaches_its_head_alone(tmp_path: Path) -> None:
    inputs = {"query": numbers(2, 1, 64), "kv": numbers(2, 50, 128), "mask": mask_of("full", 2, 50)}
    comparison = KernelComparison("FirstTokenAttention", inputs, {}, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = comparison.outputs()
    changed = inputs["kv"].copy()
    changed[1, 7, 3] = np.nan
    (after,), _ = comparison.outputs(kv=changed)
    assert np.isnan(after[1, 0, :32]).all()
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1, 0, 32:], before[1, 0, 32:])
