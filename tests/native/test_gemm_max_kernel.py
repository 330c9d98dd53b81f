"""Maximum over the tokens of a vocabulary's scores: native kernels vs. the operators of their ONNX functions."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.vocabulary_pooling import vocabulary_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

from .kernel_comparison import Array, KernelComparison, resident_weights_kb
from .test_gemm_kernels import int8_linear

pytestmark = pytest.mark.usefixtures("native_library")

LEADING = [(1, 1), (1, 7), (2, 13), (1, 95), (3, 33), (8, 128)]
"""[batch, tokens]: below, at and above the rows of a tile and of a row block."""
SIZES = [(4, 1), (32, 32), (64, 33), (388, 100), (96, 1551), (16, 2100)]
"""[K, N]: whole and partial panels, one chunk of the vocabulary and two."""


def function_of(name: str, inputs: dict[str, Array], constants: dict[str, Array]) -> ir.Function:
    """Return the function that the exporter writes for arguments in this order."""
    arrays = {**inputs, **constants}
    mask = arrays.pop("mask")
    values = [
        ir.Value(name=key, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
        for key, array in {**arrays, "mask": mask}.items()
    ]
    call = ir.node(name, values, domain=KERNEL_DOMAIN)
    call.outputs[0].shape = ir.Shape(["batch", len(arrays["bias"])])
    return vocabulary_function(call)


def comparison_of(name: str, inputs: dict[str, Array], constants: dict[str, Array], folder: Path) -> KernelComparison:
    function = function_of(name, inputs, constants)
    renamed = [{f"{key}.in": array for key, array in arrays.items()} for arrays in (inputs, constants)]
    return KernelComparison(name, *renamed, folder, function=function)


def compare(name: str, inputs: dict[str, Array], constants: dict[str, Array], folder: Path) -> None:
    (actual,), (expected,) = comparison_of(name, inputs, constants, folder).outputs()
    assert actual.shape == (len(inputs["x"]), len(constants["bias"]))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    assert (actual >= 0).all()


def masks(leading: tuple[int, int], kind: str) -> Array:
    """Return an attention mask: of all tokens, with padding on the right or the left, or with holes."""
    batch, tokens = leading
    lengths = np.linspace(tokens, 0, batch + 1)[:-1, None]
    kinds = {
        "full": np.ones(leading),
        "right": np.arange(tokens) < lengths,
        "left": np.arange(tokens)[::-1] < lengths,
        "holes": np.random.default_rng(1).random(leading) < 0.3,
        "none": np.zeros(leading),
    }
    return kinds[kind].astype(np.int64)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_float_maximum_matches_reference(leading: tuple[int, int], size: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(*leading, size[0])).astype(np.float32), masks(leading, "holes")
    weight = rng.normal(size=size[::-1]).astype(np.float32)
    bias = rng.normal(size=size[1]).astype(np.float32)
    compare("VocabularyMax", {"x": x, "mask": mask}, {"weight": weight, "bias": bias}, tmp_path)


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("leading", LEADING[1:4], ids=str)
@pytest.mark.int8_operators
def test_int8_maximum_matches_reference(
    leading: tuple[int, int], size: tuple[int, int], bits: int, tmp_path: Path
) -> None:
    inputs, constants = int8_linear(leading, *size)
    if bits == 7:
        constants["weight"] = np.clip(constants["weight"], -64, 64)
    arrays = {"x": inputs["x"], "mask": masks(leading, "right")}
    compare("QuantizedVocabularyMax", arrays, constants, tmp_path)


@pytest.mark.parametrize("kind", ["full", "right", "left", "holes", "none"])
def test_masked_tokens_do_not_count(kind: str, tmp_path: Path) -> None:
    leading = (3, 60)
    inputs, constants = int8_linear(leading, 64, 70)
    compare("QuantizedVocabularyMax", {"x": inputs["x"], "mask": masks(leading, kind)}, constants, tmp_path)


def test_packing_releases_mapped_pages_of_the_vocabulary(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(1024, 512)).astype(np.float32)
    inputs = {"x": np.ones((1, 2, 512), dtype=np.float32), "mask": np.ones((1, 2), dtype=np.int64)}
    comparison = comparison_of("VocabularyMax", inputs, {"weight": weight, "bias": weight[:, 0]}, tmp_path)
    assert max(resident_weights_kb()) < 100
    (actual,), (expected,) = comparison.outputs()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-5)  # sums of 512 products, in another order


@pytest.mark.parametrize("token", range(3))
def test_a_token_without_numbers_hides_no_other(token: int, tmp_path: Path) -> None:
    """Its own scores are left out."""
    x = np.array([5, 2, 1], dtype=np.float32).reshape(1, 3, 1)
    x[0, token] = np.nan
    inputs = {"x": x, "mask": np.ones((1, 3), dtype=np.int64)}
    constants = {"weight": np.ones((1, 1), dtype=np.float32), "bias": np.zeros(1, dtype=np.float32)}
    (actual,), _ = comparison_of("VocabularyMax", inputs, constants, tmp_path).outputs()
    assert actual[0, 0] == np.nanmax(x)
