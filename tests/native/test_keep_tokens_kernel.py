"""Choosing the tokens that stay (KeepTokens): native kernel vs. the operators of its ONNX function."""

from pathlib import Path

import numpy as np
import pytest

from .kernel_comparison import KernelComparison

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "size"), [(1, 1, 2, 4), (1, 128, 12, 32), (3, 70, 4, 6), (2, 200, 3, 64)]
)
def test_kernel_keeps_the_tokens_of_its_function(
    batch: int, tokens: int, heads: int, size: int, padding: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    mask = np.ones((batch, tokens), dtype=bool)
    if padding in ("right", "left"):
        mask = np.arange(tokens) < rng.integers(1, tokens + 1, (batch, 1))
        mask = mask[:, ::-1].copy() if padding == "left" else mask
    elif padding == "holes":
        mask = rng.random((batch, tokens)) < 0.6
        mask[:, tokens // 2] = True
    qkv = rng.normal(size=(batch, tokens, 3 * heads * size)).astype(np.float32)
    inputs = {"qkv": qkv, "mask": mask, "lengths": mask.sum(axis=1) * 3 // 2}  # as others have been pruned before
    comparison = KernelComparison("KeepTokens", inputs, {}, tmp_path, num_heads=heads, scale=size**-0.5, percent=40)
    for actual, expected in zip(*comparison.outputs(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_not_a_number_is_chosen_last(tmp_path: Path) -> None:
    qkv = np.ones((1, 40, 24), dtype=np.float32)
    qkv[0, 3] = np.nan
    inputs = {"qkv": qkv, "mask": np.ones((1, 40), dtype=bool), "lengths": np.array([40])}
    comparison = KernelComparison("KeepTokens", inputs, {}, tmp_path, num_heads=2, scale=0.5, percent=50)
    (indices, kept_mask, _, is_full), _ = comparison.outputs()
    assert (indices.shape, bool(kept_mask.all()), bool(is_full)) == ((1, 20, 1), True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.ones((1, 39), dtype=bool)}, r"a mask \[B, T\]"),
        ({"lengths": np.ones(2, dtype=np.int64)}, r"a mask \[B, T\] and lengths"),
        ({"qkv": np.ones((1, 40, 25), dtype=np.float32)}, "queries, keys and values"),
    ],
)
def test_inputs_that_do_not_fit_are_an_error(changes: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    inputs = {
        "qkv": np.ones((1, 40, 24), dtype=np.float32), "mask": np.ones((1, 40), dtype=bool), "lengths": np.array([40])
    }  # fmt: skip
    comparison = KernelComparison("KeepTokens", inputs, {}, tmp_path, num_heads=2, scale=0.5, percent=50)
    with pytest.raises(Exception, match=message):
        comparison.outputs(**changes)
