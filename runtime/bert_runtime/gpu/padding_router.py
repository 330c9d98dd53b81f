"""Routing of batches on a GPU to the graph that is made for their padding."""

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from bert_runtime.bundle.manifest import MASKED, PACKED, UNMASKED
from bert_runtime.errors import BundleError, CudaUnavailableError
from bert_runtime.fork_guard import CUDA_LOST, ForkGuard
from bert_runtime.gpu.shape_buckets import ShapeBuckets, is_full, is_right_padded
from bert_runtime.numerics import FloatArray
from bert_runtime.runner import Runner
from bert_runtime.tokenization import Batch

__all__ = ["MIN_PADDING_SHARE", "PaddingRouter", "choose_padding"]

_log = logging.getLogger("bert_runtime")

MIN_PADDING_SHARE = 0.1
"""Share of padding from which a batch is packed. A judgement: packing and unpacking copy a little (not measured)."""


def choose_padding(batch: Batch) -> str:
    """Return the padding mode that a batch runs fastest in.

    Small batches run masked, since only the masked graph is captured as CUDA graphs.
    """
    mask = batch.attention_mask
    if mask.size <= ShapeBuckets().max_tokens:
        return MASKED
    if is_full(batch):
        return UNMASKED
    return PACKED if float(mask.mean()) <= 1 - MIN_PADDING_SHARE and is_right_padded(batch) else MASKED


class PaddingRouter:
    """The sessions of one model on one GPU, a padding mode each; a `bert_runtime.runner.Runner`.

    Every session holds the weights once more, so all but the masked one are opened when a batch first needs them. If
    one cannot be opened, that is logged once and the masked one runs its batches. Safe to call from many threads.

    Args:
        masked: the session of the masked graph.
        others: opens the sessions of other padding modes, by mode.
    """

    def __init__(self, masked: Runner, others: Mapping[str, Callable[[], Runner]]) -> None:
        self.threads = masked.threads
        self.device_name = masked.device_name
        self._masked = masked
        self._others = others
        self._opening = Lock()
        self._opened: dict[str, Runner] = {}
        self._fork_guard = ForkGuard(CUDA_LOST)

    def run(self, batch: Batch) -> FloatArray:
        """Return the raw outputs of a batch, float32 [B, …]; see `CudaSession.run`."""
        self._fork_guard.check()
        return self._session(choose_padding(batch)).run(batch)

    def _session(self, padding: str) -> Runner:
        """Return the session for a padding mode, opening it on first use; the masked one where that fails."""
        if padding not in self._others:
            return self._masked
        with self._opening:
            if padding not in self._opened:
                try:
                    self._opened[padding] = self._others[padding]()
                except (BundleError, CudaUnavailableError) as error:
                    self._opened[padding] = self._masked
                    _log.warning("%s; continuing with the masked graph", error)
            return self._opened[padding]
