"""A packed graph beside a padded one: batches with much padding take it, all others the padded one's CUDA graphs."""

import logging
from collections.abc import Callable
from threading import Lock

from bert_runtime.buckets import GraphShapes, is_right_padded
from bert_runtime.cuda import CudaSession
from bert_runtime.errors import BundleError
from bert_runtime.tasks import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["LEAST_PADDING", "PackedBeside", "takes_packed"]

_log = logging.getLogger("bert_runtime")

LEAST_PADDING = 0.1
"""Share of a batch that is padding from which on it is packed: packing and unpacking copy a little (not measured)."""


def takes_packed(batch: Batch) -> bool:
    """Whether a batch is better packed, and may be; smaller ones are better off as CUDA graphs."""
    mask = batch.attention_mask
    if mask.size <= GraphShapes().most_tokens:
        return False
    return float(mask.mean()) <= 1 - LEAST_PADDING and is_right_padded(batch)


class PackedBeside:
    """Two sessions on one GPU; the packed one is opened when a batch first needs it.

    Where it cannot be opened any more, that is warned of once, and the padded one runs everything. Safe to call from
    many threads.
    """

    def __init__(self, padded: CudaSession, open_packed: Callable[[], CudaSession]) -> None:
        self.threads = padded.threads
        self.place = padded.place
        self._padded = padded
        self._open = open_packed
        self._opening = Lock()
        self._packed: CudaSession | None = None
        self._failed = False

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        session = self._opened() if takes_packed(batch) else None
        return (session or self._padded).run(batch)

    def _opened(self) -> CudaSession | None:
        """The packed session, opened by whoever needs it first; `None` where it cannot be."""
        with self._opening:
            if self._packed is None and not self._failed:
                try:
                    self._packed = self._open()
                except BundleError as error:
                    self._failed = True
                    _log.warning("%s; going on with padding", error)
            return self._packed
