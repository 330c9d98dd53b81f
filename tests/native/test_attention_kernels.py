"""Self-attention with uint8 and float32 outputs, with and without a position bias: native kernels vs. the operators of
their ONNX functions."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bert_runtime import BundleError

from .hostile_graphs import ATTENTIONS
from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")

SHAPES = [(1, 1, 1, 8), (1, 2, 12, 32), (2, 13, 2, 16), (3, 33, 4, 20), (1, 64, 12, 64), (2, 65, 2, 64),
          (1, 72, 1, 40), (2, 100, 2, 96), (1, 512, 1, 128), (1, 700, 1, 7)]  # fmt: skip
"""[batch, tokens, heads, head size]"""
OUTPUT = {"y_scale": np.float32(0.02), "y_zero_point": np.uint8(128)}
FLOAT32 = pytest.mark.parametrize("function", ["SelfAttention", "RelativeAttention"])
QUANTIZED = pytest.mark.parametrize("function", ["QuantizedAttention", "QuantizedRelativeAttention"])
SIZES = pytest.mark.parametrize(("tokens", "head_size"), [(40, 32), (70, 64)])
"""The second is multiplied in tiles where there is AMX; bf16 is in both."""


def attention_inputs(
    batch: int, tokens: int, heads: int, head_size: int, std: float = 1.0, function: str = ""
) -> dict[str, Array]:
    """Return random qkv [batch, tokens, 3 * heads * head_size], a mask of sequences of random lengths, and a bias if
    the function takes one."""
    rng = np.random.default_rng(1)
    qkv = rng.normal(scale=std, size=(batch, tokens, 3 * heads * head_size)).astype(np.float32)
    lengths = rng.integers(1, tokens + 1, batch)
    mask = (np.arange(tokens) < lengths[:, None])[:, None, None]
    inputs = {"qkv": qkv, "mask": np.broadcast_to(mask, (batch, 1, tokens, tokens)).copy()}
    bias = rng.normal(scale=std, size=(heads, 2 * tokens - 1)).astype(np.float32)
    return inputs | ({"bias": bias} if "Relative" in function else {})


def compare_quantized(
    inputs: dict[str, Array], folder: Path, heads: int, scale: float, function: str = "QuantizedAttention"
) -> KernelComparison:
    return KernelComparison(function, inputs, OUTPUT, folder, num_heads=heads, scale=scale)


@pytest.mark.parametrize(("batch", "tokens", "heads", "head_size"), SHAPES)
@QUANTIZED
def test_quantized_attention_matches_reference_within_one_step(
    function: str, batch: int, tokens: int, heads: int, head_size: int, tmp_path: Path
) -> None:
    inputs = attention_inputs(batch, tokens, heads, head_size, function=function)
    comparison = compare_quantized(inputs, tmp_path, heads, head_size**-0.5, function)
    for full in (False, True):
        (actual,), (expected,) = comparison.outputs(mask=inputs["mask"] | full)
        assert actual.shape == (batch, tokens, heads * head_size)
        max_difference, fraction = uint8_difference(actual, expected)
        assert max_difference <= 1, f"{full=}"
        assert fraction < 0.05 or actual.size < 200, f"{full=}"


@pytest.mark.parametrize("tokens", [60, 70])
@QUANTIZED
def test_quantized_attention_with_scores_of_hundreds_matches_reference(
    function: str, tokens: int, tmp_path: Path
) -> None:
    """Nearly all probabilities vanish: each query attends to one key among many."""
    inputs = attention_inputs(2, tokens, 2, 64, std=8.0, function=function)
    output = {"y_scale": np.float32(0.25), "y_zero_point": np.uint8(128)}
    comparison = KernelComparison(function, inputs, output, tmp_path, num_heads=2, scale=0.125)
    (actual,), (expected,) = comparison.outputs()
    max_difference, fraction = uint8_difference(actual, expected)
    assert max_difference <= 1
    assert fraction < 0.05


@pytest.mark.parametrize("head_size", [32, 64])
@pytest.mark.parametrize(("tokens", "top"), [(400, 6.0), (512, 9.05), (512, 12.0), (2048, 7.7), (4096, 7.0)])
def test_small_probabilities_next_to_a_large_one_are_not_rounded_away(
    tokens: int, top: float, head_size: int, tmp_path: Path
) -> None:
    """One key with a value of 0 has much of the attention; thousands of others share the rest."""
    inputs = attention_inputs(1, tokens, 1, head_size)
    qkv = inputs["qkv"].reshape(tokens, 3, head_size)
    scores = np.random.default_rng(3).normal(0, 0.5, (tokens, 1)).astype(np.float32)
    scores[0] = top
    qkv[:, 0], qkv[:, 1], qkv[:, 2] = 1.0, scores / np.sqrt(head_size), 1.0
    qkv[0, 2] = 0.0
    inputs["mask"][:] = True
    output = {"y_scale": np.float32(1 / 255), "y_zero_point": np.uint8(0)}
    comparison = KernelComparison("QuantizedAttention", inputs, output, tmp_path, num_heads=1, scale=head_size**-0.5)
    (actual,), (expected,) = comparison.outputs()
    assert uint8_difference(actual, expected)[0] <= 1


@pytest.mark.parametrize("head_size", [16, 64])
@pytest.mark.parametrize("top", [0.0, 0.6893, 10.0])
@pytest.mark.parametrize("tokens", [5000, 8192])
def test_equal_keys_of_a_long_text_are_averaged(tokens: int, top: float, head_size: int, tmp_path: Path) -> None:
    """All probabilities, or all but that of the first key, are rounded alike: as int16, 64 steps stand for 63.5."""
    qkv = np.zeros((1, tokens, 3 * head_size), dtype=np.float32)
    qkv[..., :head_size] = 1.0
    qkv[0, 0, head_size : 2 * head_size] = top / (0.25 * head_size)
    qkv[..., 2 * head_size :] = 0.98
    inputs = {"qkv": qkv, "mask": np.ones((1, tokens), dtype=np.int64)}
    output = {"y_scale": np.float32(1 / 255), "y_zero_point": np.uint8(0)}
    (found,) = KernelComparison(
        "QuantizedAttention", inputs, output, tmp_path, num_heads=1, scale=0.25
    ).native_outputs()
    assert set(found.ravel().tolist()) == {250}


@SIZES
@QUANTIZED
def test_quantized_attention_without_keys_is_zero(function: str, tokens: int, head_size: int, tmp_path: Path) -> None:
    """Queries whose keys are all masked, and values of 0, give the zero point."""
    inputs = attention_inputs(2, tokens, 2, head_size, function=function)
    inputs["mask"][1] = False
    comparison = compare_quantized(inputs, tmp_path, 2, 0.25, function)
    (actual,), (expected,) = comparison.outputs()
    assert uint8_difference(actual[0], expected[0])[0] <= 1
    assert (actual[1] == 128).all()
    (of_zeros,), _ = comparison.outputs(qkv=np.zeros_like(inputs["qkv"]))
    assert (of_zeros == 128).all()


@pytest.mark.parametrize("holes", [True, False])
@SIZES
@QUANTIZED
def test_masked_tokens_do_not_change_quantized_attention(
    function: str, tokens: int, head_size: int, holes: bool, tmp_path: Path
) -> None:
    inputs = attention_inputs(1, tokens, 2, head_size, function=function)
    attended = np.arange(tokens) % 3 != 1 if holes else np.arange(tokens) < 17
    inputs["mask"][:] = attended
    comparison = compare_quantized(inputs, tmp_path, 2, head_size**-0.5, function)
    (before,), _ = comparison.outputs()
    changed, width = inputs["qkv"].copy(), 2 * head_size
    changed[:, ~attended, width:] = 50.0
    for query in (50.0, 1e30, np.inf, np.nan):  # the queries of masked tokens do not count either
        changed[:, ~attended, :width] = query
        (after,), _ = comparison.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, attended], after[:, attended])
    changed[:, ~attended, :width] = inputs["qkv"][:, ~attended, :width]
    (unmasked,), _ = comparison.outputs(qkv=changed, mask=np.ones_like(inputs["mask"]))
    assert uint8_difference(before, unmasked)[0] > 1


@pytest.mark.parametrize("function", ATTENTIONS)
def test_every_byte_but_0_stands_for_true(function: str, tmp_path: Path) -> None:
    """NumPy's booleans may have any byte. Bundles from before 0.1.0 say whether the mask is full, too."""
    inputs = attention_inputs(3, 40, 2, 32, function=function) | {"is_full": np.asarray(False)}
    output = OUTPUT if "Quantized" in function else {}
    comparison = KernelComparison(function, inputs, output, tmp_path, num_heads=2, scale=32**-0.5)
    (expected,), _ = comparison.outputs()
    any_byte = np.random.default_rng(0).integers(1, 256, inputs["mask"].shape, dtype=np.uint8)
    (actual,), _ = comparison.outputs(mask=(any_byte * inputs["mask"]).view(np.bool_))
    np.testing.assert_array_equal(actual, expected)
    (full,), _ = comparison.outputs(is_full=np.full((), 2, np.uint8).view(np.bool_))
    np.testing.assert_array_equal(full, comparison.outputs(mask=np.ones_like(inputs["mask"]))[0][0])


@pytest.mark.parametrize("part", ["key", "value"])
def test_outliers_of_100_times_the_others_cost_at_most_one_step(part: str, tmp_path: Path) -> None:
    """Keys of a head share one scale, as do values that are int16. The queries hardly read the key's outlier."""
    inputs = attention_inputs(1, 64, 1, 64)
    inputs["mask"][:] = True
    qkv = inputs["qkv"].reshape(64, 3, 64)
    qkv[:, 0, 7] *= 0.01
    qkv[5, 1 if part == "key" else 2, 7] = 100
    (actual,), (expected,) = compare_quantized(inputs, tmp_path, 1, 0.125).outputs()
    assert uint8_difference(actual, expected)[0] <= 1


def test_a_value_of_100_times_the_others_changes_no_small_probabilities(tmp_path: Path) -> None:
    """The first key has a value of 0 and half of the attention; each of the others has one 325th of it."""
    inputs = attention_inputs(1, 384, 1, 64)
    inputs["mask"][:] = True
    qkv = inputs["qkv"].reshape(384, 3, 64)
    qkv[:], qkv[:, 0], qkv[1:, 2] = 0.0, 1.0, 1.0
    qkv[0, 1] = np.log(325) / 8
    qkv[5, 2, 7] = 100
    (actual,), (expected,) = compare_quantized(inputs, tmp_path, 1, 0.125).outputs()
    assert uint8_difference(actual, expected)[0] <= 1


def test_scores_of_hundred_thousands_attend_to_one_key(tmp_path: Path) -> None:
    inputs = attention_inputs(1, 70, 1, 64)
    inputs["mask"][:] = True
    qkv = inputs["qkv"].reshape(70, 3, 64)
    qkv[:, 0] = 170 + np.linspace(0, 1, 70, dtype=np.float32)[:, None]
    qkv[:, 1], qkv[3, 1] = 0.0, 170.0
    (actual,), _ = compare_quantized(inputs, tmp_path, 1, 0.125).outputs()
    expected = np.clip(np.rint(qkv[3, 2] / OUTPUT["y_scale"]) + 128, 0, 255)
    assert np.abs(actual[0] - expected).max() <= 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 3e38])
@SIZES
@pytest.mark.parametrize("function", ATTENTIONS)
def test_faults_stay_in_their_sequence_and_head(
    function: str, tokens: int, head_size: int, value: float, tmp_path: Path
) -> None:
    """uint8 has no NaN, so that a fault in INT8 looks like any output; those of other texts must not change."""
    inputs = attention_inputs(3, tokens, 2, head_size, function=function)
    inputs["mask"][:] = True
    output = OUTPUT if "Quantized" in function else {}
    comparison = KernelComparison(function, inputs, output, tmp_path, num_heads=2, scale=head_size**-0.5)
    (before,), _ = comparison.outputs()
    faulty = inputs["qkv"].copy()
    for part in range(3):  # query, key and value of the first head
        faulty[1, 4, part * 2 * head_size] = value
    (after,), _ = comparison.outputs(qkv=faulty)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(after[1, :, head_size:], before[1, :, head_size:])


@pytest.mark.parametrize("dtype", [np.bool_, np.int64])
@pytest.mark.parametrize("function", ATTENTIONS)
def test_a_mask_of_keys_is_that_of_all_queries(function: str, dtype: type[np.generic], tmp_path: Path) -> None:
    """Attention reads the runtime's mask as it is, with padding on either side or in between."""
    inputs = attention_inputs(4, 40, 2, 32, function=function)
    keys = np.arange(40) < np.array([40, 17, 40, 3])[:, None]
    keys[2] = np.arange(40) % 3 != 1
    keys[3] = keys[3, ::-1]
    inputs["mask"][:] = keys[:, None, None]
    output = OUTPUT if "Quantized" in function else {}
    (expected,), _ = KernelComparison(function, inputs, output, tmp_path, num_heads=2, scale=32**-0.5).outputs()
    number = 1 if dtype == np.bool_ else -(1 << 40)  # whatever is not 0 counts
    inputs["mask"] = np.where(keys, np.asarray(number, dtype), np.asarray(0, dtype))
    (actual,), (reference,) = KernelComparison(
        function, inputs, output, tmp_path, num_heads=2, scale=32**-0.5
    ).outputs()
    np.testing.assert_array_equal(actual, expected)
    tolerance = 1 if "Quantized" in function else 0.02 if "Bf16" in function else 2e-6
    np.testing.assert_allclose(actual.astype(float), reference.astype(float), rtol=0, atol=tolerance)


def test_mask_of_another_size_is_an_error(tmp_path: Path) -> None:
    comparison = compare_quantized(attention_inputs(1, 8, 2, 16), tmp_path, 2, 0.25)
    with pytest.raises(Exception, match=r"expected a mask \[B, T\] or \[B, 1, T, T\]"):
        comparison.outputs(mask=np.ones((1, 1, 1, 8), dtype=np.bool_))


def test_bias_of_another_size_is_an_error(tmp_path: Path) -> None:
    inputs = attention_inputs(1, 8, 2, 16, function="RelativeAttention")
    comparison = KernelComparison("RelativeAttention", inputs, {}, tmp_path, num_heads=2, scale=0.25)
    with pytest.raises(Exception, match=r"expected a bias \[num_heads, 2·T - 1\]"):
        comparison.outputs(bias=inputs["bias"][:, 1:])


def test_bias_shows_where_queries_and_keys_are_zero(tmp_path: Path) -> None:
    """Scores are the bias alone: each query attends to the key two tokens after it, the last two to the last ones."""
    inputs = attention_inputs(1, 9, 1, 16, function="QuantizedRelativeAttention")
    inputs["mask"][:] = True
    inputs["qkv"][..., :32] = 0
    inputs["bias"][:] = -1000.0
    inputs["bias"][0, 8 + 2] = 0.0
    (actual,), (expected,) = compare_quantized(inputs, tmp_path, 1, 0.25, "QuantizedRelativeAttention").outputs()
    np.testing.assert_array_equal(actual[0, :7], expected[0, :7])
    values = np.rint(inputs["qkv"][0, 2:, 32:] / OUTPUT["y_scale"]) + 128
    assert np.abs(actual[0, :7] - np.clip(values, 0, 255)).max() <= 1


@pytest.mark.parametrize("head_size", [32, 64])
@QUANTIZED
def test_quantized_attention_with_a_causal_mask_matches_reference(
    function: str, head_size: int, tmp_path: Path
) -> None:
    inputs = attention_inputs(2, 70, 2, head_size, function=function)
    inputs["mask"] &= np.tri(70, dtype=np.bool_)
    (actual,), (expected,) = compare_quantized(inputs, tmp_path, 2, head_size**-0.5, function).outputs()
    max_difference, fraction = uint8_difference(actual, expected)
    assert max_difference <= 1
    assert fraction < 0.05


def test_concurrent_calls_return_the_same_outputs(tmp_path: Path) -> None:
    inputs, shorter = attention_inputs(2, 50, 4, 32), attention_inputs(1, 9, 4, 32)
    comparison = compare_quantized(inputs, tmp_path, 4, 32**-0.5)
    expected = [comparison.outputs(**arrays)[0][0] for arrays in (inputs, shorter)]
    with ThreadPoolExecutor(8) as pool:
        outputs = [*pool.map(lambda i: comparison.outputs(**(inputs, shorter)[i % 2])[0][0], range(64))]
    assert all((output == expected[i % 2]).all() for i, output in enumerate(outputs))


@pytest.mark.parametrize(("batch", "tokens", "heads", "head_size"), SHAPES)
@FLOAT32
def test_float32_attention_matches_reference(
    function: str, batch: int, tokens: int, heads: int, head_size: int, tmp_path: Path
) -> None:
    inputs = attention_inputs(batch, tokens, heads, head_size, function=function)
    lengths = inputs["mask"]
    masks = {
        "full": lengths | True,
        "lengths": lengths,
        "left": np.ascontiguousarray(lengths[..., ::-1]),
        "causal": lengths & np.tri(tokens, dtype=np.bool_),
        "holes": lengths & (np.arange(tokens) % 3 != 1),
    }
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=heads, scale=head_size**-0.5)
    for kind, mask in masks.items():
        (actual,), (expected,) = comparison.outputs(mask=mask)
        assert actual.shape == (batch, tokens, heads * head_size)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6, err_msg=kind)


@FLOAT32
def test_float32_attention_with_scores_of_hundreds_matches_reference(function: str, tmp_path: Path) -> None:
    inputs = attention_inputs(2, 60, 2, 64, std=8.0, function=function)
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=2, scale=0.125)
    (actual,), (expected,) = comparison.outputs()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)  # float32 scores of hundreds have 5 decimals


@FLOAT32
def test_float32_attention_without_keys_is_zero(function: str, tmp_path: Path) -> None:
    inputs = attention_inputs(2, 20, 2, 16, function=function)
    inputs["mask"][1] = False
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=2, scale=0.25)
    (actual,), (expected,) = comparison.outputs()
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=2e-6)
    assert (actual[1] == 0).all()


@pytest.mark.parametrize("holes", [True, False])
@FLOAT32
def test_masked_tokens_do_not_change_float32_attention(function: str, holes: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(1, 40, 2, 32, function=function)
    attended = np.arange(40) % 3 != 1 if holes else np.arange(40) < 17
    inputs["mask"][:] = attended
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = comparison.outputs()
    changed = inputs["qkv"].copy()
    for value in (50.0, 1e30, np.inf, np.nan):
        changed[:, ~attended] = value
        (after,), _ = comparison.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, attended], after[:, attended])


def test_nan_in_a_key_reaches_the_queries_that_attend_to_it(tmp_path: Path) -> None:
    """A fault upstream is not hidden, and does not spread to other queries."""
    inputs = attention_inputs(1, 20, 1, 16)
    inputs["mask"] &= np.tri(20, dtype=np.bool_)
    inputs["qkv"][0, 12, 16] = np.nan  # the first element of a key
    comparison = KernelComparison("SelfAttention", inputs, {}, tmp_path, num_heads=1, scale=0.25)
    (actual,), (expected,) = comparison.outputs()
    assert np.isnan(expected[0, 12:]).all()
    assert np.isnan(actual[0, 12:]).all()
    assert not np.isnan(actual[0, :12]).any()


@pytest.mark.parametrize("attributes", [{"num_heads": 0, "scale": 0.25}, {"num_heads": 1, "scale": -0.25}])
def test_invalid_attributes_are_an_error(attributes: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected num_heads of at least 1, and a finite scale above 0"):
        KernelComparison("SelfAttention", attention_inputs(1, 4, 1, 16), {}, tmp_path, **attributes)
