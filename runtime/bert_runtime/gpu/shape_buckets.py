"""The shapes that CUDA graphs are captured for, and the padding that a batch has."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from bert_runtime.bundle.manifest import MASKED, UNMASKED
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["NO_BUCKETS", "Shape", "ShapeBuckets", "accepts_batch", "is_full", "is_right_padded", "unpad"]

Shape = tuple[int, int]
"""Batch size × sequence length."""


@dataclass(frozen=True, kw_only=True)
class ShapeBuckets:
    """Decide which batches run as captured CUDA graphs: small ones, whose kernels take longer to launch than to run.

    A CUDA graph belongs to one shape, and each takes memory for its buffers and time to capture. So batches are padded
    to one of `batch_sizes` × `lengths`, and at most `max_graphs` shapes are captured, each on its second use.

    The defaults are judgements. `python -m bert_bench.experiments.cuda` compares them with a session that captures
    nothing.
    """

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Batch sizes to pad to, in ascending order; none captures no graphs."""

    lengths: tuple[int, ...] = (16, 32, 64, 96, 128, 192, 256, 384, 512)
    """Sequence lengths to pad to, in tokens."""

    max_tokens: int = 1024
    """Padded tokens per batch above which kernels run longer than they take to launch."""

    max_graphs: int = 16
    """CUDA graphs that one session keeps."""

    alignment: int = 8
    """Sequence lengths are padded to a multiple of this, as ONNX Runtime's fused FP16 attention with a mask needs."""

    def shape_for(self, batch_size: int, length: int, max_positions: int) -> Shape | None:
        """Return the smallest bucket that holds a batch, or `None` if the batch is not to be captured.

        Args:
            batch_size: sequences of the batch.
            length: tokens of its longest sequence.
            max_positions: tokens of the longest sequence that the model reads; also a bucket of its own.
        """
        lengths = sorted({min(bucket, max_positions) for bucket in (*self.lengths, max_positions)})
        height = next((bucket for bucket in self.batch_sizes if bucket >= batch_size), None)
        width = next((bucket for bucket in lengths if bucket >= length), None)
        if height is None or width is None or height * width > self.max_tokens:
            return None
        return height, width

    def align_length(self, length: int, max_positions: int) -> int:
        """Round `length` up to a multiple of `alignment`, but not above `max_positions`."""
        return max(length, min(ceil(length / self.alignment) * self.alignment, max_positions))


NO_BUCKETS = ShapeBuckets(batch_sizes=(), alignment=1)
"""Batches as they are: no padding is added and no CUDA graph captured. For unmasked and packed graphs."""


def is_right_padded(batch: Batch) -> bool:
    """Return whether all padding follows the tokens of its sequence."""
    mask = batch.attention_mask
    return bool((mask[:, 1:] <= mask[:, :-1]).all())


def is_full(batch: Batch) -> bool:
    """Return whether the batch has no padding."""
    return bool(batch.attention_mask.all())


def accepts_batch(padding: str, batch: Batch) -> bool:
    """Return whether a graph of that padding mode (see `Variant.padding`) can read the batch."""
    return padding == MASKED or (is_full(batch) if padding == UNMASKED else is_right_padded(batch))


def unpad(array: FloatArray, axes: Sequence[str | int], batch: Batch) -> FloatArray:
    """Cut the output of a padded batch down to the sizes of `batch`.

    Args:
        array: output of the padded batch.
        axes: the output's axes as the manifest names them; `batch` and `sequence` are cut.
        batch: the batch before padding.
    """
    sizes = dict(zip(("batch", "sequence"), batch.input_ids.shape, strict=True))
    return array[tuple(slice(sizes.get(str(axis))) for axis in axes)]
