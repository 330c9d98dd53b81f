"""Packed rows: the kernels compute what they do of a batch with padding."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from bert_export.kernel_functions import FUNCTIONS
from bert_export.outline_embeddings import embedding_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

from ..queries_without_keys import skip_where_queries_without_keys_differ
from .kernel_comparison import Array, KernelComparison
from .test_gemm_max_kernel import comparison_of

pytestmark = pytest.mark.usefixtures("native_library")

BATCH, TOKENS, HEADS, HEAD_SIZE = 5, 70, 3, 20
WIDTH = HEADS * HEAD_SIZE
READ = {"FirstTokenAttention": "kv", "MeanPool": "x", "MeanPoolNormalize": "x"}
"""The input that is packed, where it is not `qkv`."""
MIXING = [name for name in FUNCTIONS if name.endswith("Attention") or name.startswith("MeanPool")]
"""Functions that mix the tokens of a sequence."""
KINDS = pytest.mark.parametrize("kind", ["full", "right", "left", "holes", "empty"])
POSITIONS = ("position_keys", "position_queries", "key_indices", "query_indices", "y_scale", "y_zero_point")
"""Constants."""


def mask_of(kind: str, batch: int = BATCH, tokens: int = TOKENS) -> Array:
    """Return a mask bool [batch, tokens]; `empty` has a sequence without any token."""
    rng = np.random.default_rng(1)
    right = np.arange(tokens) < rng.integers(1, tokens + 1, (batch, 1))
    masks = {
        "full": right | True, "right": right, "left": right[:, ::-1], "holes": rng.random((batch, tokens)) < 0.5,
        "empty": right & (np.arange(batch) != 1)[:, None],
    }  # fmt: skip
    return np.ascontiguousarray(masks[kind])


def packed_rows(mask: Array) -> tuple[Array, Array]:
    """Return the sequences and the positions of the packed rows: up to each last token, at least one."""
    ends = np.where(mask, np.arange(1, mask.shape[1] + 1), 1).max(axis=1)
    return np.nonzero(np.arange(mask.shape[1]) < ends[:, None])


def arguments_of(function: str) -> dict[str, Array]:
    """Return the arguments of a function but its mask, whose rows are [BATCH, TOKENS, …]."""
    rng = np.random.default_rng(2)

    def floats(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    angles = np.outer(np.arange(TOKENS), 50.0 ** -(np.arange(HEAD_SIZE // 2) * 2 / HEAD_SIZE))
    values = {
        "qkv": floats(BATCH, TOKENS, 3 * WIDTH), "kv": floats(BATCH, TOKENS, 2 * WIDTH), "x": floats(BATCH, TOKENS, 33),
        "query": floats(BATCH, 1, WIDTH), "bias": floats(HEADS, 2 * TOKENS - 1),
        "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32),
        "position_keys": 0.1 * floats(HEADS, 9, HEAD_SIZE), "position_queries": 0.1 * floats(HEADS, 9, HEAD_SIZE),
        "key_indices": rng.integers(0, 9, 2 * TOKENS), "query_indices": rng.integers(0, 9, 2 * TOKENS),
        "y_scale": np.float32(0.02), "y_zero_point": np.uint8(128),
    }  # fmt: skip
    return {str(value.name): values[value.name] for value in FUNCTIONS[function].inputs if value.name in values}


def attributes_of(function: str) -> dict[str, Any]:
    if function.startswith("MeanPool"):
        return {}
    return {"num_heads": HEADS, "scale": HEAD_SIZE**-0.5} | ({"window": 7} if "Local" in function else {})


@KINDS
@pytest.mark.parametrize("function", MIXING)
def test_packed_rows_have_the_answers_of_padded_ones(function: str, kind: str, tmp_path: Path) -> None:
    if kind == "empty":
        skip_where_queries_without_keys_differ()
    arguments, mask, read = arguments_of(function), mask_of(kind), READ.get(function, "qkv")
    rows = packed_rows(mask)
    constants = {name: value for name, value in arguments.items() if name in POSITIONS}
    inputs = {name: value for name, value in arguments.items() if name not in POSITIONS} | {"mask": mask}
    (tmp_path / "padded").mkdir()
    padded = KernelComparison(function, inputs, constants, tmp_path / "padded", **attributes_of(function))
    (whole,) = padded.native_outputs()
    inputs[read] = inputs[read][rows][None]
    (actual,) = KernelComparison(function, inputs, constants, tmp_path, **attributes_of(function)).native_outputs()
    np.testing.assert_array_equal(actual, whole[rows][None] if read == "qkv" else whole)


@KINDS
@pytest.mark.parametrize("quantized", [False, True])
def test_the_vocabulary_is_pooled_over_packed_rows(kind: str, *, quantized: bool, tmp_path: Path) -> None:
    mask, rng = mask_of(kind).astype(np.int64), np.random.default_rng(0)
    constants: dict[str, Array]
    if quantized:
        name, x = "QuantizedVocabularyMax", rng.integers(0, 256, (BATCH, TOKENS, 32)).astype(np.uint8)
        constants = {
            "weight": rng.integers(-63, 64, (32, 50)).astype(np.int8), "x_scale": np.array(0.02, np.float32),
            "scales": np.full(50, 0.01, np.float32), "x_zero_point": np.array(128, np.uint8),
        }  # fmt: skip
    else:
        name, x = "VocabularyMax", rng.normal(size=(BATCH, TOKENS, 32)).astype(np.float32)
        constants = {"weight": rng.normal(size=(50, 32)).astype(np.float32)}
    constants["bias"] = rng.normal(size=50).astype(np.float32)
    (tmp_path / "padded").mkdir()
    whole = comparison_of(name, {"x": x, "mask": mask}, constants, tmp_path / "padded").native_outputs()
    rows = x[packed_rows(mask > 0)][None]
    packed = comparison_of(name, {"x": rows, "mask": mask}, constants, tmp_path).native_outputs()
    np.testing.assert_array_equal(packed, whole)


@KINDS
@pytest.mark.parametrize("function", ["EmbedNorm", "EmbedNormQuantize"])
def test_embeddings_return_packed_rows(function: str, kind: str, tmp_path: Path) -> None:
    rng, mask = np.random.default_rng(0), mask_of(kind)
    shapes = {
        "token_table": (50, 24),
        "position_table": (TOKENS, 24),
        "segment_table": (2, 24),
        "gamma": 24,
        "beta": 24,
    }
    constants = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if function == "EmbedNormQuantize":
        constants |= {"smoothing": np.ones(24, np.float32), "scale": np.float32(0.03), "zero_point": np.uint8(120)}
    ids = {"input_ids": rng.integers(0, 50, mask.shape), "segment_ids": rng.integers(0, 2, mask.shape)}
    names = ["input_ids", "token_table", "token_scales", "position_table", "position_ids", "segment_table",
             "segment_ids", "gamma", "beta", *list(constants)[5:]]  # fmt: skip

    def compare(inputs: dict[str, Array], folder: Path) -> KernelComparison:
        given = constants | inputs
        arguments = [*names, *(["mask"] if "mask" in inputs else [])]
        values = [
            ir.Value(name=name, type=ir.TensorType(ir.tensor(given[name]).dtype)) if name in given else None
            for name in arguments
        ]
        body = embedding_function(ir.node(function, values, {"epsilon": 1e-12}, domain=KERNEL_DOMAIN))
        folder.mkdir()
        return KernelComparison(function, inputs, constants, folder, body, epsilon=1e-12)

    whole = compare(ids, tmp_path / "padded").native_outputs()
    for dtype in (np.bool_, np.int64):
        packed, without_kernel = compare(ids | {"mask": mask.astype(dtype)}, tmp_path / dtype.__name__).outputs()
        for found, padded in zip(packed, whole, strict=True):
            np.testing.assert_array_equal(found, padded[packed_rows(mask)][None])
        np.testing.assert_allclose(without_kernel[0], whole[0], rtol=1e-6, atol=4e-6)


@KINDS
@pytest.mark.parametrize("dtype", [np.bool_, np.int64])
def test_rows_are_found_and_unpacked(kind: str, dtype: type, tmp_path: Path) -> None:
    mask = mask_of(kind)
    sequences, positions = packed_rows(mask)
    (packed,), (padded,) = KernelComparison("FirstRows", {"mask": mask.astype(dtype)}, {}, tmp_path).outputs()
    assert packed.tolist() == [[[0, row]] for row in np.flatnonzero(positions == 0)]
    assert padded.tolist() == [[[sequence, 0]] for sequence in range(BATCH)]
    x = np.random.default_rng(0).normal(size=(BATCH, TOKENS, 9)).astype(np.float32)
    kept = np.zeros_like(x)
    kept[sequences, positions] = x[sequences, positions]
    inputs = {"rows": x[sequences, positions][None], "mask": mask.astype(dtype)}
    comparison = KernelComparison("UnpackRows", inputs, {}, tmp_path)
    np.testing.assert_array_equal(comparison.native_outputs()[0], kept)
    np.testing.assert_array_equal(comparison.outputs(rows=x)[1][0], x)


@KINDS
def test_packed_tokens_that_stay(kind: str, tmp_path: Path) -> None:
    """The rows are those of the tokens that stay with padding, and so are the masks."""
    mask, qkv = mask_of(kind), arguments_of("SelfAttention")["qkv"]
    inputs = {"qkv": qkv, "mask": mask, "lengths": mask.sum(axis=1)}
    attributes = {"num_heads": HEADS, "scale": 0.5, "percent": 40}
    (tmp_path / "padded").mkdir()
    indices, *masks = KernelComparison("KeepTokens", inputs, {}, tmp_path / "padded", **attributes).native_outputs()
    rows = packed_rows(mask)
    inputs["qkv"] = qkv[rows][None]
    found = KernelComparison("KeepTokens", inputs, {}, tmp_path, **attributes).native_outputs()
    kept = packed_rows(masks[0])
    starts = np.flatnonzero(rows[1] == 0)
    expected = (starts[kept[0]] + indices[..., 0][kept])[None, :, None]
    for actual, value in zip(found, [expected, *masks], strict=True):
        np.testing.assert_array_equal(actual, value)


def test_one_sequence_with_padding_may_be_packed_or_not(tmp_path: Path) -> None:
    qkv, mask = arguments_of("SelfAttention")["qkv"][:1], np.arange(TOKENS)[None] < 23
    found = []
    for name, rows in (("padded", qkv), ("packed", qkv[:, :23])):
        (tmp_path / name).mkdir()
        inputs = {"qkv": rows, "mask": mask}
        comparison = KernelComparison("SelfAttention", inputs, {}, tmp_path / name, num_heads=HEADS, scale=0.5)
        found.append(comparison.native_outputs()[0])
    np.testing.assert_array_equal(found[1], found[0][:, :23])


@pytest.mark.parametrize("count", [1, 60, 141])
@pytest.mark.parametrize("function", ["SelfAttention", "MeanPool", "FirstTokenAttention", "UnpackRows", "KeepTokens"])
def test_another_number_of_rows_is_an_error(function: str, count: int, tmp_path: Path) -> None:
    mask = np.ones((2, TOKENS), bool)
    width = 2 * WIDTH if function == "FirstTokenAttention" else 3 * WIDTH
    inputs = {{**READ, "UnpackRows": "rows"}.get(function, "qkv"): np.ones((1, count, width), np.float32), "mask": mask}
    if function == "FirstTokenAttention":
        inputs["query"] = np.ones((2, 1, WIDTH), np.float32)
    if function == "KeepTokens":
        inputs["lengths"] = mask.sum(axis=1)
    attributes = {} if function in ("MeanPool", "UnpackRows") else {"num_heads": HEADS, "scale": 0.5}
    attributes |= {"percent": 50} if function == "KeepTokens" else {}
    comparison = KernelComparison(function, inputs, {}, tmp_path, **attributes)
    with pytest.raises(Exception, match=r"expected a mask \[B, T\], or as many packed rows \[1, N\] as it says"):
        comparison.native_outputs()
