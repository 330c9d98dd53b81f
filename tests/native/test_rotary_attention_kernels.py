"""Attention with rotated queries and keys, with and without a window: native kernels vs. their ONNX functions."""

from pathlib import Path

import numpy as np
import pytest

from bert_runtime import BundleError

from ..queries_without_keys import skip_where_queries_without_keys_differ
from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")

SHAPES = [(1, 1, 1, 8, 4), (1, 2, 12, 32, 1), (2, 13, 2, 16, 3), (3, 33, 4, 20, 64), (1, 64, 12, 64, 64),
          (2, 100, 2, 96, 7), (1, 300, 1, 128, 64), (1, 700, 1, 6, 33), (2, 129, 1, 64, 32)]  # fmt: skip
"""[batch, tokens, heads, head size], window"""
OUTPUT = {"y_scale": np.float32(0.02), "y_zero_point": np.uint8(128)}
MASKS = ("full", "lengths", "left", "holes")


def rotary_inputs(batch: int, tokens: int, heads: int, head_size: int, mask: str = "full") -> dict[str, Array]:
    """Return random qkv, a mask of keys, and rotations of more positions than there are tokens."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, tokens + 1, batch)
    keys = np.ones((batch, tokens), bool) if mask == "full" else np.arange(tokens) < lengths[:, None]
    if mask == "left":
        keys = np.ascontiguousarray(keys[:, ::-1])
    if mask == "holes":
        keys &= np.arange(tokens) % 3 != 1
    angles = np.outer(np.arange(tokens + 5), 50.0 ** -(np.arange(head_size // 2) * 2 / head_size))
    return {
        "qkv": rng.normal(size=(batch, tokens, 3 * heads * head_size)).astype(np.float32),
        "mask": keys,
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


def compare(
    function: str, inputs: dict[str, Array], folder: Path, heads: int, head_size: int, window: int
) -> KernelComparison:
    skip_where_queries_without_keys_differ()
    constants = OUTPUT if "Quantized" in function else {}
    attributes = {"num_heads": heads, "scale": head_size**-0.5, **({"window": window} if "Local" in function else {})}
    return KernelComparison(function, inputs, constants, folder, **attributes)


@pytest.mark.parametrize(("batch", "tokens", "heads", "head_size", "window"), SHAPES)
@pytest.mark.parametrize("function", ["RotaryAttention", "LocalAttention"])
def test_float32_attention_matches_reference(
    function: str, batch: int, tokens: int, heads: int, head_size: int, window: int, tmp_path: Path
) -> None:
    inputs = {mask: rotary_inputs(batch, tokens, heads, head_size, mask) for mask in MASKS}
    comparison = compare(function, inputs["full"], tmp_path, heads, head_size, window)
    for mask, arrays in inputs.items():
        (actual,), (expected,) = comparison.outputs(**arrays)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=4e-6, err_msg=mask)


@pytest.mark.parametrize(("batch", "tokens", "heads", "head_size", "window"), SHAPES)
@pytest.mark.parametrize("function", ["QuantizedRotaryAttention", "QuantizedLocalAttention"])
def test_quantized_attention_matches_reference_within_one_step(
    function: str, batch: int, tokens: int, heads: int, head_size: int, window: int, tmp_path: Path
) -> None:
    inputs = {mask: rotary_inputs(batch, tokens, heads, head_size, mask) for mask in MASKS}
    comparison = compare(function, inputs["full"], tmp_path, heads, head_size, window)
    for mask, arrays in inputs.items():
        (actual,), (expected,) = comparison.outputs(**arrays)
        max_difference, fraction = uint8_difference(actual, expected)
        assert max_difference <= 1, mask
        assert fraction < 0.05 or actual.size < 200, mask


@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize("function", ["LocalAttention", "QuantizedLocalAttention"])
def test_keys_beyond_the_window_are_not_read(function: str, head_size: int, tmp_path: Path) -> None:
    inputs = rotary_inputs(1, 90, 2, head_size)
    comparison = compare(function, inputs, tmp_path, 2, head_size, 10)
    (before,), _ = comparison.outputs()
    changed = inputs["qkv"].copy()
    changed[:, 40, 2 * head_size :] *= 0.5  # not larger, so that no scale of INT8 changes
    (after,), _ = comparison.outputs(qkv=changed)
    differs = (before != after).any(axis=-1)[0]
    assert differs[30:51].sum() > 15
    assert not differs[:30].any()
    assert not differs[51:].any()


@pytest.mark.parametrize("function", ["LocalAttention", "QuantizedLocalAttention"])
@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize("value", [50.0, np.inf, np.nan])
def test_masked_tokens_do_not_change_local_attention(
    function: str, value: float, head_size: int, tmp_path: Path
) -> None:
    inputs = rotary_inputs(1, 70, 2, head_size, "holes")
    inputs["mask"][:, 50:] = False
    comparison = compare(function, inputs, tmp_path, 2, head_size, 5)
    (before,), _ = comparison.outputs()
    attended = inputs["mask"][0]
    changed = inputs["qkv"].copy()
    changed[:, ~attended] = value
    (after,), _ = comparison.outputs(qkv=changed)
    np.testing.assert_array_equal(before[:, attended], after[:, attended])
    (unmasked,), (expected,) = comparison.outputs()
    assert float(unmasked[0, 65:].min()) == float(expected[0, 65:].min()) == (128 if "Quantized" in function else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.ones((1, 9), bool)}, r"expected a mask \[B, T\]"),
        ({"cos": np.ones((7, 8), np.float32)}, "cosines and sines"),
        ({"cos": np.ones((20, 4), np.float32)}, "cosines and sines"),
        ({"sin": np.ones((9, 8), np.float32)}, "cosines and sines"),
    ],
)
def test_inputs_of_other_sizes_are_errors(changes: dict[str, Array], message: str, tmp_path: Path) -> None:
    comparison = compare("LocalAttention", rotary_inputs(1, 8, 2, 16), tmp_path, 2, 16, 3)
    with pytest.raises(Exception, match=message):
        comparison.outputs(**changes)


@pytest.mark.parametrize("window", [0, -1, 1 << 40])
def test_invalid_window_is_an_error(window: int, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected a window of 1 to 2147483647"):
        compare("LocalAttention", rotary_inputs(1, 8, 2, 16), tmp_path, 2, 16, window)
