"""Embeddings and their LayerNorm: native kernels vs. the operators of their ONNX functions."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from bert_export.outline_embeddings import embedding_function
from bert_runtime.cpu.native_kernels import KERNEL_DOMAIN

from .kernel_comparison import Array, KernelComparison, uint8_difference

pytestmark = pytest.mark.usefixtures("native_library")

BOTH = pytest.mark.parametrize("function", ["EmbedNorm", "EmbedNormQuantize"])
NAMES = ("input_ids", "token_table", "token_scales", "position_table", "position_ids", "segment_table", "segment_ids",
         "gamma", "beta", "smoothing", "scale", "zero_point")  # fmt: skip
IDS = ("input_ids", "position_ids", "segment_ids")


def tables(columns: int, dtype: Any = np.float32) -> dict[str, Array]:
    """Return random tables of 50 tokens, 40 positions and 2 segments, and the constants of the LayerNorm."""
    rng = np.random.default_rng(0)
    of_tokens = rng.normal(size=(50, columns)).astype(np.float32)
    table = {"token_table": rng.integers(-127, 128, of_tokens.shape).astype(np.int8),
             "token_scales": rng.uniform(0.005, 0.02, (50, 1)).astype(np.float32)}  # fmt: skip
    return {
        **(table if dtype == np.int8 else {"token_table": of_tokens.astype(dtype)}),
        "position_table": rng.normal(size=(40, columns)).astype(np.float32),
        "segment_table": rng.normal(size=(2, columns)).astype(np.float32),
        **{name: rng.normal(size=columns).astype(np.float32) for name in ("gamma", "beta", "smoothing")},
        "scale": np.float32(0.03),
        "zero_point": np.uint8(120),
    }


def ids(batch: int, tokens: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.integers(0, size, (batch, tokens)) for name, size in zip(IDS, (50, 40, 2), strict=True)}


def compare(function: str, arguments: dict[str, Array], folder: Path) -> KernelComparison:
    """Call a function with those arguments that it takes."""
    names = NAMES if function == "EmbedNormQuantize" else NAMES[:9]
    used = {name: value for name, value in arguments.items() if name in names}
    values = [
        ir.Value(name=name, type=ir.TensorType(ir.tensor(used[name]).dtype)) if name in used else None for name in names
    ]
    body = embedding_function(ir.node(function, values, {"epsilon": 1e-12}, domain=KERNEL_DOMAIN))
    inputs = {name: value for name, value in used.items() if name in IDS}
    constants = {name: value for name, value in used.items() if name not in IDS}
    return KernelComparison(function, inputs, constants, folder, body, epsilon=1e-12)


def assert_close(outputs: tuple[list[Array], list[Array]]) -> None:
    actual, expected = outputs
    # Sums of 768 elements in another order: outputs reach 10, where float32's step is 1e-6.
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6, atol=4e-6)
    assert actual[0].shape == expected[0].shape
    for quantized, reference in zip(actual[1:], expected[1:], strict=True):
        assert uint8_difference(quantized, reference)[0] <= 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 16, 384), (3, 33, 100), (2, 5, 7), (2, 40, 768)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
@BOTH
def test_embeddings_match_reference(function: str, dtype: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    batch, tokens, columns = shape
    given = ids(batch, tokens)
    given.pop("position_ids")
    assert_close(compare(function, given | tables(columns, dtype), tmp_path).outputs())


@pytest.mark.parametrize(
    "without",
    [
        (),
        ("segment_ids",),
        ("segment_ids", "segment_table"),
        ("position_ids", "position_table"),
        ("position_ids", "position_table", "segment_ids", "segment_table"),
    ],
    ids=["positions of each token", "one segment", "no segments", "no positions", "tokens alone"],
)
@BOTH
def test_parts_may_be_left_out(function: str, without: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ids(2, 20) | tables(48)
    if "segment_ids" in without:
        arguments["segment_table"] = arguments["segment_table"][:1]
    for name in without:
        del arguments[name]
    assert_close(compare(function, arguments, tmp_path).outputs())


def test_ids_from_the_end_are_those_of_gather(tmp_path: Path) -> None:
    arguments = ids(2, 20) | tables(48, np.int8)
    for name, size in zip(IDS, (50, 40, 2), strict=True):
        arguments[name][0, :2] = (-1, -size)
    assert_close(compare("EmbedNorm", arguments, tmp_path).outputs())


@pytest.mark.parametrize("wrong", [50, 1 << 40, -51, -(1 << 63)])
@pytest.mark.parametrize(("name", "size"), [*zip(IDS, (50, 40, 2), strict=True)])
@BOTH
def test_ids_beyond_their_table_are_errors(function: str, name: str, size: int, wrong: int, tmp_path: Path) -> None:
    arguments = ids(2, 20) | tables(48)
    comparison = compare(function, arguments, tmp_path)
    changed = arguments[name].copy()
    changed[1, 3] = wrong
    kind = {"input_ids": "token", "position_ids": "position", "segment_ids": "segment"}[name]
    with pytest.raises(Exception, match=f"expected {kind} ids from 0 to {size - 1}, found {wrong} at index 23"):
        comparison.outputs(**{name: changed})


def test_more_tokens_than_positions_are_an_error(tmp_path: Path) -> None:
    arguments = {"input_ids": ids(1, 40)["input_ids"]} | tables(48)
    del arguments["segment_table"]
    comparison = compare("EmbedNorm", arguments, tmp_path)
    comparison.outputs()
    with pytest.raises(Exception, match="expected no more tokens than there are positions"):
        comparison.outputs(input_ids=np.zeros((1, 41), np.int64))
