"""The paddings of a graph on a GPU: large batches take the one made for their padding, all others the masked one."""

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from bert_runtime.bundle.manifest import MASKED, PACKED, UNMASKED
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import ShapeBuckets, is_full, is_right_padded
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["MIN_PADDING_SHARE", "PaddingRouter", "choose_padding"]

_log = logging.getLogger("bert_runtime")

MIN_PADDING_SHARE = 0.1
"""Share of a batch that is padding from which on it is packed: packing and unpacking copy a little (not measured)."""


def choose_padding(batch: Batch) -> str:
    """The padding that a batch is best run in; small ones are better off as CUDA graphs, which are masked."""
    mask = batch.attention_mask
    if mask.size <= ShapeBuckets().most_tokens:
        return MASKED
    if is_full(batch):
        return UNMASKED
    return PACKED if float(mask.mean()) <= 1 - MIN_PADDING_SHARE and is_right_padded(batch) else MASKED


class PaddingRouter:
    """The sessions of one graph's paddings on one GPU; all but the masked one are opened when a batch first needs them.

    Each holds the weights once more. One that cannot be opened any more is warned of once, and the masked one runs its
    batches. Safe to call from many threads.
    """

    def __init__(self, masked: CudaSession, others: Mapping[str, Callable[[], CudaSession]]) -> None:
        self.threads = masked.threads
        self.device_name = masked.device_name
        self._masked = masked
        self._others = others
        self._opening = Lock()
        self._opened: dict[str, CudaSession] = {}

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        self._masked.check_process()  # locks and CUDA do not survive a fork
        return self._session(choose_padding(batch)).run(batch)

    def _session(self, padding: str) -> CudaSession:
        """Return the session for a padding mode, opening it on first use; the masked one where that fails."""
        if padding not in self._others:
            return self._masked
        with self._opening:
            if padding not in self._opened:
                try:
                    self._opened[padding] = self._others[padding]()
                except (BundleError, CudaUnavailableError) as error:
                    self._opened[padding] = self._masked
                    _log.warning("%s; going on with the masked graph", error)
            return self._opened[padding]
