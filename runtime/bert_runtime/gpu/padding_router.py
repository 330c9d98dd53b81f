"""The forms of a graph on a GPU: large batches take the one made for their padding, all others the masked one."""

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from bert_runtime.bundle.manifest import MASKED, PACKED, UNMASKED
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.gpu.cuda_session import CudaSession
from bert_runtime.gpu.shape_buckets import GraphShapes, is_full, is_right_padded
from bert_runtime.numerics import FloatArray
from bert_runtime.tokenization import Batch

__all__ = ["LEAST_PADDING", "Forms", "form_for"]

_log = logging.getLogger("bert_runtime")

LEAST_PADDING = 0.1
"""Share of a batch that is padding from which on it is packed: packing and unpacking copy a little (not measured)."""


def form_for(batch: Batch) -> str:
    """The form that a batch is best run in; small ones are better off as CUDA graphs, which are masked."""
    mask = batch.attention_mask
    if mask.size <= GraphShapes().most_tokens:
        return MASKED
    if is_full(batch):
        return UNMASKED
    return PACKED if float(mask.mean()) <= 1 - LEAST_PADDING and is_right_padded(batch) else MASKED


class Forms:
    """The sessions of one graph's forms on one GPU; all but the masked one are opened when a batch first needs them.

    Each holds the weights once more. One that cannot be opened any more is warned of once, and the masked one runs its
    batches. Safe to call from many threads.
    """

    def __init__(self, masked: CudaSession, others: Mapping[str, Callable[[], CudaSession]]) -> None:
        self.threads = masked.threads
        self.place = masked.place
        self._masked = masked
        self._others = others
        self._opening = Lock()
        self._opened: dict[str, CudaSession] = {}

    def run(self, batch: Batch) -> FloatArray:
        """Raw outputs float32 [B, …] of a batch; see `CudaSession.run`."""
        self._masked.check_process()  # locks and CUDA do not survive a fork
        return self._session(form_for(batch)).run(batch)

    def _session(self, form: str) -> CudaSession:
        """The session of a form, opened by whoever needs it first; the masked one in the place of what is not there."""
        if form not in self._others:
            return self._masked
        with self._opening:
            if form not in self._opened:
                try:
                    self._opened[form] = self._others[form]()
                except (BundleError, CudaUnavailableError) as error:
                    self._opened[form] = self._masked
                    _log.warning("%s; going on with the masked graph", error)
            return self._opened[form]
