"""Our kernels for attention, held against the operators that their functions consist of."""

from pathlib import Path

import numpy as np
import pytest

from bert_runtime import BundleError

from .kernel_calls import Array, Both, steps_apart

pytestmark = pytest.mark.usefixtures("each_library")


def attention_inputs(batch: int, tokens: int, heads: int, size: int, spread: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    qkv = rng.normal(scale=spread, size=(batch, tokens, 3 * heads * size)).astype(np.float32)
    lengths = rng.integers(1, tokens + 1, batch)
    mask = (np.arange(tokens) < lengths[:, None])[:, None, None]
    return {
        "qkv": qkv,
        "mask": np.broadcast_to(mask, (batch, 1, tokens, tokens)).copy(),
        "is_full": np.asarray(False),
    }


ATTENTION_RANGE = {"y_scale": np.float32(0.02), "y_zero_point": np.uint8(128)}


@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "size"),
    [(1, 1, 1, 8), (1, 2, 12, 32), (2, 13, 2, 16), (3, 33, 4, 20), (1, 64, 12, 64), (2, 100, 2, 96), (1, 512, 1, 128),
     (1, 700, 1, 7)],
)  # fmt: skip
@pytest.mark.parametrize("full", [True, False], ids=["full", "masked"])
def test_attention_is_the_same_byte(batch: int, tokens: int, heads: int, size: int, full: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(batch, tokens, heads, size) | {"is_full": np.asarray(full)}
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=heads, scale=size**-0.5)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (batch, tokens, heads * size)
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.05 or ours.size < 200


def test_attention_to_one_key_among_many_is_the_same_byte(tmp_path: Path) -> None:
    """Scores of hundreds: nearly all probabilities vanish."""
    inputs = attention_inputs(2, 60, 2, 64, spread=8.0)
    wide = {"y_scale": np.float32(0.25), "y_zero_point": np.uint8(128)}
    both = Both("QuantizedAttention", inputs, wide, tmp_path, num_heads=2, scale=0.125)
    (ours,), (theirs,) = both.outputs()
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.05


@pytest.mark.parametrize(("tokens", "top"), [(400, 6.0), (512, 9.05), (512, 12.0), (2048, 7.7), (4096, 7.0)])
def test_small_probabilities_beside_a_large_one_are_not_rounded_away(tokens: int, top: float, tmp_path: Path) -> None:
    """One key has much of the attention, and a value of nothing; thousands of others share what is left."""
    inputs = attention_inputs(1, tokens, 1, 32)
    qkv = inputs["qkv"].reshape(tokens, 3, 32)
    scores = np.random.default_rng(3).normal(0, 0.5, (tokens, 1)).astype(np.float32)
    scores[0] = top
    qkv[:, 0], qkv[:, 1], qkv[:, 2] = 1.0, scores / np.sqrt(32), 1.0
    qkv[0, 2] = 0.0
    inputs["is_full"] = np.asarray(True)
    output = {"y_scale": np.float32(1 / 255), "y_zero_point": np.uint8(0)}
    both = Both("QuantizedAttention", inputs, output, tmp_path, num_heads=1, scale=32**-0.5)
    (ours,), (theirs,) = both.outputs()
    assert steps_apart(ours, theirs)[0] <= 1


def test_a_row_whose_keys_are_all_masked_is_zero_and_zeros_stay_zeros(tmp_path: Path) -> None:
    inputs = attention_inputs(2, 20, 2, 16)
    inputs["mask"][1] = False
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=0.25)
    (ours,), (theirs,) = both.outputs()
    assert steps_apart(ours[0], theirs[0])[0] <= 1
    assert (ours[1] == 128).all()
    (silent,), _ = both.outputs(qkv=np.zeros_like(inputs["qkv"]))
    assert (silent == 128).all()


@pytest.mark.parametrize("holes", [True, False])
def test_masked_keys_do_not_count(holes: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(1, 40, 2, 32)
    kept = np.arange(40) % 3 != 1 if holes else np.arange(40) < 17
    inputs["mask"][:] = kept
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = both.outputs()
    changed = inputs["qkv"].copy()
    changed[:, ~kept, 64:] = 50.0
    for of_queries in (50.0, 1e30, np.inf, np.nan):  # nor do the queries of padded rows
        changed[:, ~kept, :64] = of_queries
        (after,), _ = both.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, kept], after[:, kept])
    changed[:, ~kept, :64] = inputs["qkv"][:, ~kept, :64]
    (unmasked,), _ = both.outputs(qkv=changed, is_full=np.asarray(True))
    assert steps_apart(before, unmasked)[0] > 1


def test_a_mask_of_another_size_is_an_error(tmp_path: Path) -> None:
    inputs = attention_inputs(1, 8, 2, 16)
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=0.25)
    with pytest.raises(Exception, match=r"expected a mask \[B, 1, T, T\]"):
        both.outputs(mask=np.ones((1, 1, 1, 8), dtype=np.bool_))


def test_each_query_has_keys_of_its_own(tmp_path: Path) -> None:
    inputs = attention_inputs(2, 70, 2, 32)
    inputs["mask"] &= np.tri(70, dtype=np.bool_)
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=2, scale=32**-0.5)
    (ours,), (theirs,) = both.outputs()
    most, share = steps_apart(ours, theirs)
    assert most <= 1
    assert share < 0.05


def test_calls_from_many_threads_agree(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = attention_inputs(2, 50, 4, 32)
    both = Both("QuantizedAttention", inputs, ATTENTION_RANGE, tmp_path, num_heads=4, scale=32**-0.5)
    shorter = attention_inputs(1, 9, 4, 32)
    expected = [both.outputs(**each)[0][0] for each in (inputs, shorter)]
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda i: both.outputs(**(inputs, shorter)[i % 2])[0][0], range(64))]
    assert all((answer == expected[i % 2]).all() for i, answer in enumerate(answers))


SHAPES = [(1, 1, 1, 8), (1, 2, 12, 32), (2, 13, 2, 16), (3, 33, 4, 20), (1, 64, 12, 64), (2, 100, 2, 96),
          (1, 512, 1, 128), (1, 700, 1, 7)]  # fmt: skip


@pytest.mark.parametrize(("batch", "tokens", "heads", "size"), SHAPES)
@pytest.mark.parametrize("mask", ["full", "lengths", "triangle", "holes"])
def test_attention_in_floats_is_the_same(
    batch: int, tokens: int, heads: int, size: int, mask: str, tmp_path: Path
) -> None:
    inputs = attention_inputs(batch, tokens, heads, size) | {"is_full": np.asarray(mask == "full")}
    if mask == "triangle":
        inputs["mask"] &= np.tri(tokens, dtype=np.bool_)
    if mask == "holes":
        inputs["mask"] &= np.arange(tokens) % 3 != 1
    both = Both("SelfAttention", inputs, {}, tmp_path, num_heads=heads, scale=size**-0.5)
    (ours,), (theirs,) = both.outputs()
    assert ours.shape == (batch, tokens, heads * size)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_attention_in_floats_to_one_key_among_many(tmp_path: Path) -> None:
    inputs = attention_inputs(2, 60, 2, 64, spread=8.0)
    both = Both("SelfAttention", inputs, {}, tmp_path, num_heads=2, scale=0.125)
    (ours,), (theirs,) = both.outputs()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # scores of hundreds have five digits behind the point


def test_a_row_of_floats_whose_keys_are_all_masked_is_zero(tmp_path: Path) -> None:
    inputs = attention_inputs(2, 20, 2, 16)
    inputs["mask"][1] = False
    both = Both("SelfAttention", inputs, {}, tmp_path, num_heads=2, scale=0.25)
    (ours,), (theirs,) = both.outputs()
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=2e-6)
    assert (ours[1] == 0).all()


@pytest.mark.parametrize("holes", [True, False])
def test_what_padding_holds_does_not_count(holes: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(1, 40, 2, 32)
    kept = np.arange(40) % 3 != 1 if holes else np.arange(40) < 17
    inputs["mask"][:] = kept
    both = Both("SelfAttention", inputs, {}, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = both.outputs()
    changed = inputs["qkv"].copy()
    for value in (50.0, 1e30, np.inf, np.nan):
        changed[:, ~kept] = value
        (after,), _ = both.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, kept], after[:, kept])


def test_a_score_that_is_no_number_makes_none(tmp_path: Path) -> None:
    """Of queries that have the key alone: what is broken upstream is not hidden."""
    inputs = attention_inputs(1, 20, 1, 16)
    inputs["mask"] &= np.tri(20, dtype=np.bool_)
    inputs["qkv"][0, 12, 16] = np.nan  # a key's first element
    both = Both("SelfAttention", inputs, {}, tmp_path, num_heads=1, scale=0.25)
    (ours,), (theirs,) = both.outputs()
    assert np.isnan(theirs[0, 12:]).all()
    assert np.isnan(ours[0, 12:]).all()
    assert not np.isnan(ours[0, :12]).any()


@pytest.mark.parametrize("attributes", [{"num_heads": 0, "scale": 0.25}, {"num_heads": 1, "scale": -0.25}])
def test_attributes_that_no_attention_has_are_an_error(attributes: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected at least one head, and a scale above 0"):
        Both("SelfAttention", attention_inputs(1, 4, 1, 16), {}, tmp_path, **attributes)
