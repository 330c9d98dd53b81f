"""The few shapes that CUDA graphs are captured for, and what padding makes of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from bert_runtime.bundle.manifest import MASKED, UNMASKED
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["NO_BUCKETS", "Shape", "ShapeBuckets", "accepts_batch", "is_full", "is_right_padded", "unpad"]

Shape = tuple[int, int]
"""Rows × tokens of a batch."""


@dataclass(frozen=True, kw_only=True)
class ShapeBuckets:
    """Which batches are run as captured CUDA graphs: small ones, where launching kernels takes longer than they run.

    A graph belongs to one shape, and every distinct one takes memory for its buffers and time for its capture. So
    batches are padded to `rows` × `tokens`, and no more than `most` shapes are captured: those that came twice first.
    """

    rows: tuple[int, ...] = (1, 2, 4, 8)
    tokens: tuple[int, ...] = (16, 32, 64, 96, 128, 192, 256, 384, 512)
    most_tokens: int = 1024
    """Tokens of a batch, padding included, above which its kernels run longer than they take to launch."""
    most: int = 16
    """Graphs that are kept."""
    alignment: int = 8
    """Queries, in rows, of which ONNX Runtime's fused attention kernel with a mask wants a multiple in FP16."""

    def shape_for(self, rows: int, tokens: int, max_tokens: int) -> Shape | None:
        """The smallest shape that holds such a batch, or `None` for one that is not to be captured.

        `max_tokens` is the longest sequence that the model has positions for, and a length of its own.
        """
        lengths = sorted({min(each, max_tokens) for each in (*self.tokens, max_tokens)})
        height = next((each for each in self.rows if each >= rows), None)
        width = next((each for each in lengths if each >= tokens), None)
        if height is None or width is None or height * width > self.most_tokens:
            return None
        return height, width

    def aligned(self, tokens: int, max_tokens: int) -> int:
        """`tokens` rounded up to what attention runs fast for, but not beyond the model's positions."""
        return max(tokens, min(ceil(tokens / self.alignment) * self.alignment, max_tokens))


NO_BUCKETS = ShapeBuckets(rows=(), alignment=1)
"""For graphs that take no padding, or leave it out: none is added, and nothing is captured."""


def is_right_padded(batch: Batch) -> bool:
    """Whether every row's tokens come first and its padding after them."""
    mask = batch.attention_mask
    return bool((mask[:, 1:] <= mask[:, :-1]).all())


def is_full(batch: Batch) -> bool:
    """Whether there is no padding."""
    return bool(batch.attention_mask.all())


def accepts_batch(padding: str, batch: Batch) -> bool:
    """Whether a graph of that padding may read the batch; see `bert_runtime.bundle.manifest.Variant`."""
    return padding == MASKED or (is_full(batch) if padding == UNMASKED else is_right_padded(batch))


def unpad(array: FloatArray, axes: Sequence[str | int], batch: Batch) -> FloatArray:
    """An output of a padded batch without what belongs to the padding; `axes` are the output's as the manifest's."""
    sizes = dict(zip(("batch", "sequence"), batch.input_ids.shape, strict=True))
    return array[tuple(slice(sizes.get(str(axis))) for axis in axes)]
