"""A packed graph beside a padded one: batches with much padding take it, all others the padded one's CUDA graphs."""

from collections.abc import Callable
from threading import Lock

from bert_runtime.buckets import GraphShapes, is_right_padded
from bert_runtime.cuda import CudaSession
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["LEAST_PADDING", "PackedBeside", "takes_packed"]

LEAST_PADDING = 0.1
"""Share of a batch that is padding from which on it is packed: packing and unpacking copy a little (not measured)."""


def takes_packed(batch: Batch) -> bool:
    """Whether a batch is better packed, and may be; smaller ones are better off as CUDA graphs."""
    mask = batch.attention_mask
    padded = float(mask.mean()) <= 1 - LEAST_PADDING
    return mask.size > GraphShapes().most_tokens and padded and is_right_padded(batch)


class PackedBeside:
    """Two sessions on one GPU; the packed one is opened when a batch first needs it. Safe to call from many threads."""

    def __init__(self, padded: CudaSession, open_packed: Callable[[], CudaSession]) -> None:
        self.threads = padded.threads
        self.place = padded.place
        self._padded = padded
        self._open = open_packed
        self._opening = Lock()
        self._packed: CudaSession | None = None

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        if not takes_packed(batch):
            return self._padded.run(batch)
        with self._opening:
            if self._packed is None:
                self._packed = self._open()
        return self._packed.run(batch)
