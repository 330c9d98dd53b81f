"""The shapes that CUDA graphs are captured for."""

import numpy as np
import pytest

from bert_runtime.gpu.shape_buckets import NO_BUCKETS, Shape, ShapeBuckets, unpad
from bert_runtime.tokenization import Batch


@pytest.mark.parametrize(
    ("rows", "tokens", "max_tokens", "shape"),
    [
        (1, 1, 512, (1, 16)),
        (1, 16, 512, (1, 16)),
        (1, 17, 512, (1, 32)),
        (3, 100, 512, (4, 128)),
        (8, 128, 512, (8, 128)),
        (1, 512, 512, (1, 512)),
        (8, 129, 512, None),  # 8 × 192 tokens are more than 1024
        (9, 1, 512, None),
        (1, 513, 1024, (1, 1024)),  # the model's own length is one of those there are
        (2, 513, 1024, None),
        (1, 60, 62, (1, 62)),  # not 64: the model has no position for the last two
        (1, 10, 12, (1, 12)),
        (1, 13, 12, None),
    ],
)
def test_the_smallest_shape_that_holds_a_batch(rows: int, tokens: int, max_tokens: int, shape: Shape | None) -> None:
    assert ShapeBuckets().shape_for(rows, tokens, max_tokens) == shape


def test_without_rows_nothing_is_captured() -> None:
    assert ShapeBuckets(batch_sizes=()).shape_for(1, 1, 512) is None


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "expected"), [(1, 512, 8), (8, 512, 8), (9, 512, 16), (505, 511, 511), (20, 20, 20)]
)
def test_tokens_are_rounded_up_within_the_positions(tokens: int, max_tokens: int, expected: int) -> None:
    assert ShapeBuckets().align_length(tokens, max_tokens) == expected
    assert NO_BUCKETS.align_length(tokens, max_tokens) == tokens


def test_what_padding_added_is_taken_away() -> None:
    ids = np.arange(1, 7, dtype=np.int64).reshape(2, 3)
    batch = Batch(ids, np.ones_like(ids), np.ones_like(ids))
    tokens = np.zeros((4, 5, 1), dtype=np.float32)
    tokens[:2, :3] = ids[..., None]
    assert unpad(tokens, ("batch", "sequence", 1), batch).tolist() == ids[..., None].tolist()
    assert unpad(tokens[:, 0], ("batch", 1), batch).tolist() == [[1], [4]]
    assert unpad(tokens, ("masks", 5, 1), batch).shape == (4, 5, 1)
