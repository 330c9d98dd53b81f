"""Shape buckets: the shapes that CUDA graphs are captured for."""

import numpy as np
import pytest

from bert_runtime.gpu.shape_buckets import NO_BUCKETS, Shape, ShapeBuckets, unpad
from bert_runtime.tokenization import Batch


@pytest.mark.parametrize(
    ("batch_size", "length", "max_positions", "shape"),
    [
        (1, 1, 512, (1, 16)),
        (1, 16, 512, (1, 16)),
        (1, 17, 512, (1, 32)),
        (3, 100, 512, (4, 128)),
        (8, 128, 512, (8, 128)),
        (1, 512, 512, (1, 512)),
        (8, 129, 512, None),  # 8 × 192 tokens are more than 1024
        (9, 1, 512, None),
        (1, 513, 1024, (1, 1024)),  # the model's maximum is a bucket of its own
        (2, 513, 1024, None),
        (1, 60, 62, (1, 62)),  # not 64: the model has no position for the last two
        (1, 10, 12, (1, 12)),
        (1, 13, 12, None),
    ],
)
def test_a_batch_gets_the_smallest_bucket_that_holds_it(
    batch_size: int, length: int, max_positions: int, shape: Shape | None
) -> None:
    assert ShapeBuckets().shape_for(batch_size, length, max_positions) == shape


def test_no_batch_sizes_capture_nothing() -> None:
    assert ShapeBuckets(batch_sizes=()).shape_for(1, 1, 512) is None


@pytest.mark.parametrize(
    ("length", "max_positions", "expected"), [(1, 512, 8), (8, 512, 8), (9, 512, 16), (505, 511, 511), (20, 20, 20)]
)
def test_lengths_are_aligned_within_the_maximum(length: int, max_positions: int, expected: int) -> None:
    assert ShapeBuckets().align_length(length, max_positions) == expected
    assert NO_BUCKETS.align_length(length, max_positions) == length


def test_unpad_cuts_the_padding_off() -> None:
    ids = np.arange(1, 7, dtype=np.int64).reshape(2, 3)
    batch = Batch(ids, np.ones_like(ids), np.ones_like(ids))
    tokens = np.zeros((4, 5, 1), dtype=np.float32)
    tokens[:2, :3] = ids[..., None]
    assert unpad(tokens, ("batch", "sequence", 1), batch).tolist() == ids[..., None].tolist()
    assert unpad(tokens[:, 0], ("batch", 1), batch).tolist() == [[1], [4]]
    assert unpad(tokens, ("masks", 5, 1), batch).shape == (4, 5, 1)
