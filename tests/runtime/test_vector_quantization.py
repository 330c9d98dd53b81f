"""Quantized embeddings: sentence-transformers' format, by hand and compared with its formulas."""

import numpy as np
import pytest

from bert_runtime import InputError, embedding_ranges, quantize_embeddings
from bert_runtime.vector_quantization import embedding_dtype, embedding_width, unpacked_embeddings

VECTORS = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)


def test_signs_are_packed_first_dimension_highest() -> None:
    vector = np.array([[0.1, -1, 2, 0, -0.5, 3, 0.2, -4, 5]], dtype=np.float32)
    assert quantize_embeddings(vector, "ubinary").tolist() == [[0b10100110, 0b10000000]]
    assert quantize_embeddings(vector, "binary").tolist() == [[0b10100110 - 128, 0]]


@pytest.mark.parametrize(("precision", "least"), [("uint8", 0), ("int8", -128)])
def test_levels_are_floored_and_saturate(precision: str, least: int) -> None:
    """Ranges 0 to 255 and 0 to 0 (a constant): a step is 1."""
    ranges = np.array([[0, 0], [255, 0]], dtype=np.float32)
    vectors = np.array([[0, 0], [3.5, 0], [255, 0], [900, 0], [-9, 0]], dtype=np.float32)
    found = quantize_embeddings(vectors, precision, ranges)
    assert (found[:, 0] - np.int16(least)).tolist() == [0, 3, 255, 255, 0]
    assert set(found[:, 1].tolist()) == {least}


def reference(vectors: np.ndarray, precision: str, ranges: np.ndarray) -> np.ndarray:
    """The formulas of sentence-transformers 6.2, written down independently."""
    if precision.endswith("binary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return (packed.astype(np.int16) - 128).astype(np.int8) if precision == "binary" else packed
    levels = np.clip(np.floor((vectors - ranges[0]) / ((ranges[1] - ranges[0]) / 255)), 0, 255)
    return (levels - 128).astype(np.int8) if precision == "int8" else levels.astype(np.uint8)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions_match_the_reference(precision: str) -> None:
    ranges = embedding_ranges(VECTORS[:20])
    found = quantize_embeddings(VECTORS, precision, ranges)
    assert found.tolist() == reference(VECTORS, precision, ranges).tolist()
    assert (found.dtype, found.shape) == (embedding_dtype(precision), (50, embedding_width(precision, 20)))
    own = quantize_embeddings(VECTORS, precision)
    assert own.tolist() == reference(VECTORS, precision, embedding_ranges(VECTORS)).tolist()
    assert quantize_embeddings(VECTORS[:0], precision).shape == (0, embedding_width(precision, 20))


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_unpacked_signs_count_equal_bits(precision: str) -> None:
    signs = unpacked_embeddings(quantize_embeddings(VECTORS, precision), precision, 20)
    assert signs.tolist() == np.where(VECTORS > 0, 1, -1).tolist()


def test_float32_stays() -> None:
    assert quantize_embeddings(VECTORS, "float32").tolist() == VECTORS.tolist()
    assert unpacked_embeddings(VECTORS, "float32", 20).tolist() == VECTORS.tolist()


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(InputError, match=r"expected an embedding precision of float32, int8, .*, found 'int4'"):
        quantize_embeddings(VECTORS, "int4")
    with pytest.raises(InputError, match=r"expected ranges \[2, 20\], .*, found \[2, 19\]"):
        quantize_embeddings(VECTORS, "int8", np.zeros((2, 19), np.float32))
    with pytest.raises(InputError, match=r"expected at least two embeddings \[N, dimensions\], found \[1, 20\]"):
        quantize_embeddings(VECTORS[:1], "int8")
    with pytest.raises(InputError, match="expected embeddings of finite numbers, found NaN or infinity"):
        quantize_embeddings(np.full((2, 20), np.nan, np.float32), "uint8")
