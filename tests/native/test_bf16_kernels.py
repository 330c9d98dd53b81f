"""Matmuls of bfloat16: native kernels vs. the operators of their ONNX functions, which multiply in float32.

Inputs that are bfloat16 numbers already are the same for both. Libraries without dot products of bfloat16 multiply in
float32, too.
"""

from pathlib import Path

import numpy as np
import pytest

from bert_export.kernel_functions import BF16_FUNCTIONS, FUNCTIONS
from bert_runtime.cpu.native_kernels import has_bf16_kernels

from .kernel_comparison import Array, KernelComparison
from .test_attention_kernels import SHAPES, attention_inputs
from .test_gemm_kernels import LEADING
from .test_gemm_max_kernel import compare, masks

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.usefixtures("native_library")

LINEARS = ["Bf16Linear", "Bf16LinearGelu", "Bf16LinearGatedGelu", "Bf16LinearGatedSilu"]
ATTENTIONS = ["Bf16SelfAttention", "Bf16RelativeAttention"]
SIZES = [(1, 2), (5, 32), (64, 34), (387, 100), (96, 1552), (1101, 300)]
"""[K, N]: odd and even K, whole and partial panels."""


def rounded(array: Array) -> Array:
    """Round to the nearest bfloat16, as float32."""
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def linear(leading: tuple[int, ...], k: int, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return x [*leading, k], and the constants of a linear layer with a weight [k, n]."""
    rng = np.random.default_rng(0)
    weight = rng.normal(scale=k**-0.5, size=(k, n)).astype(ml_dtypes.bfloat16)
    x = rng.normal(size=(*leading, k)).astype(np.float32)
    return {"x": x}, {"weight": weight, "bias": rng.normal(size=n).astype(np.float32)}


def call(name: str, inputs: dict[str, Array], constants: dict[str, Array], folder: Path) -> tuple[Array, Array]:
    """Return the outputs of the kernel and of the reference."""
    (actual,), (expected,) = KernelComparison(name, inputs, constants, folder).outputs()
    return actual, expected


def test_every_float_function_has_a_bf16_one() -> None:
    without_matmul = ("Add", "First", "KeepTokens", "MeanPool", "UnpackRows")  # Add…: LayerNorm; or too small to gain
    floats = {name for name in FUNCTIONS if not name.startswith(("Quantized", "Bf16", *without_matmul))}
    assert set(BF16_FUNCTIONS) == {f"Bf16{name}" for name in (*floats, "VocabularyMax")}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_matmul_of_bf16_numbers_matches_reference(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    comparison = KernelComparison(name, *linear(LEADING[-1], *size), tmp_path)
    for leading in LEADING:
        (actual,), (expected,) = comparison.outputs(x=rounded(linear(leading, *size)[0]["x"]))
        assert actual.shape == (*leading, size[1] // (2 if "Gated" in name else 1))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)  # the order of summation differs


@pytest.mark.parametrize("leading", [(1, 7), (1, 135)], ids=str)  # one row block and two
def test_inputs_are_rounded_to_nearest_even_bf16(leading: tuple[int, ...], tmp_path: Path) -> None:
    inputs, constants = linear(leading, 33, 64)
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-16], dtype=np.float32)
    inputs["x"][..., :4] = ties  # 1.0, 1.015625, -1.0, 1.0078125
    comparison = KernelComparison("Bf16Linear", inputs, constants, tmp_path)
    (actual,), (exact,) = comparison.outputs()
    (of_rounded,), _ = comparison.outputs(x=rounded(inputs["x"]))
    if has_bf16_kernels():
        np.testing.assert_array_equal(actual, of_rounded)
        assert 1e-4 < np.abs(actual - exact).max() < 0.03
    else:
        np.testing.assert_allclose(actual, exact, atol=2e-5)


@pytest.mark.parametrize("k", [64, 65])
def test_nan_and_infinity_stay_in_their_row(k: int, tmp_path: Path) -> None:
    inputs, constants = linear((1, 5), k, 40)
    constants["weight"] = np.abs(constants["weight"])
    comparison = KernelComparison("Bf16Linear", inputs, constants, tmp_path)
    (before,), _ = comparison.outputs()
    inputs["x"][0, 1, k - 1], inputs["x"][0, 3, 0] = np.nan, np.inf
    (after,), _ = comparison.outputs(x=inputs["x"])
    assert np.isnan(after[0, 1]).all()
    assert np.isposinf(after[0, 3]).all()
    np.testing.assert_array_equal(after[0, [0, 2, 4]], before[0, [0, 2, 4]])


@pytest.mark.parametrize(("batch", "tokens", "heads", "head_size"), SHAPES)
@pytest.mark.parametrize("function", ATTENTIONS)
def test_attention_of_bf16_numbers_matches_reference(
    function: str, batch: int, tokens: int, heads: int, head_size: int, tmp_path: Path
) -> None:
    inputs = attention_inputs(batch, tokens, heads, head_size, function=function)
    inputs["qkv"] = rounded(inputs["qkv"])
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=heads, scale=head_size**-0.5)
    # Probabilities are rounded, each by up to 2^-9 of itself.
    tolerance = 2**-8 * float(np.abs(inputs["qkv"]).max()) if has_bf16_kernels() else 2e-5
    for full in (False, True):
        (actual,), (expected,) = comparison.outputs(mask=inputs["mask"] | full)
        assert actual.shape == (batch, tokens, heads * head_size)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance, err_msg=f"{full=}")


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("function", ATTENTIONS)
def test_masked_tokens_do_not_change_bf16_attention(function: str, holes: bool, tmp_path: Path) -> None:
    inputs = attention_inputs(1, 41, 2, 32, function=function)
    attended = np.arange(41) % 3 != 1 if holes else np.arange(41) < 17
    inputs["mask"][:] = attended
    comparison = KernelComparison(function, inputs, {}, tmp_path, num_heads=2, scale=32**-0.5)
    (before,), _ = comparison.outputs()
    changed = inputs["qkv"].copy()
    for value in (50.0, 1e30, np.inf, np.nan):
        changed[:, ~attended] = value
        (after,), _ = comparison.outputs(qkv=changed)
        np.testing.assert_array_equal(before[:, attended], after[:, attended])


@pytest.mark.parametrize("kind", ["full", "right", "holes", "none"])
@pytest.mark.parametrize("size", [(5, 1), (64, 33), (96, 2100)], ids=str)
def test_vocabulary_maximum_matches_reference(size: tuple[int, int], kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rounded(rng.normal(size=(3, 33, size[0])).astype(np.float32)), "mask": masks((3, 33), kind)}
    weight = rng.normal(size=size[::-1]).astype(ml_dtypes.bfloat16)
    constants = {"weight": weight, "bias": rng.normal(size=size[1]).astype(np.float32)}
    compare("Bf16VocabularyMax", inputs, constants, tmp_path)
