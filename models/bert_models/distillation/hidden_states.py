"""A teacher's hidden states for the sequences of a training set, kept from one epoch to the next."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bert_models.distillation.teacher import pad_sequences
from bert_models.training.data import TensorBatch

__all__ = ["HiddenStates"]

_MEMORY_SHARE = 3
"""A third of the memory may be used, a judgement: three layers of width 384 take 2.8 GB for 40,000 sequences of 30
tokens."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The memory that a container may use, in bytes, or `max`."""

_UNKNOWN_MEMORY_BYTES = 8 * 1024**3


class HiddenStates:
    """Keeps the hidden states that students are compared with, in bfloat16, so that the teacher runs in one epoch only.

    The students have one teacher and one tokenizer, and training files that begin with the same rows. What exceeds
    `max_bytes` is not kept, and the teacher runs again for these sequences.

    Args:
        max_bytes: bytes to keep at most; by default a third of the memory.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._bytes_left = _memory_bytes() // _MEMORY_SHARE if max_bytes is None else max_bytes
        self._kept: dict[tuple[int, int], Tensor] = {}
        self.once_s = 0.0
        """Seconds that it has taken to compute what is kept: later epochs do not take them again."""

    def read(
        self, batch: TensorBatch, layers: Sequence[int], compute: Callable[[TensorBatch], Sequence[Tensor]]
    ) -> list[Tensor]:
        """Return the hidden states after some layers for a batch, float [B, S, H] each; padding may have any values.

        Args:
            batch: the batch.
            layers: indices of the teacher's layers.
            compute: runs the teacher on a part of the batch; returns the hidden states after every layer.
        """
        indices = batch.sequence_indices.tolist()
        missing = [
            row for row, index in enumerate(indices) if any((layer, index) not in self._kept for layer in layers)
        ]
        if not missing:
            return [self._stack(batch, layer, {}) for layer in layers]
        start_s = time.monotonic()
        part = batch if len(missing) == len(indices) else _rows_of(batch, missing)
        hidden = compute(part)
        if self._keep(part, {layer: hidden[layer] for layer in layers}):
            self.once_s += time.monotonic() - start_s
        if part is batch:
            return [hidden[layer] for layer in layers]
        return [self._stack(batch, layer, dict(zip(missing, hidden[layer], strict=True))) for layer in layers]

    def _stack(self, batch: TensorBatch, layer: int, computed: Mapping[int, Tensor]) -> Tensor:
        """Return the hidden states after a layer for a batch; `computed` has those of some rows, [S, H]."""
        device = batch.input_ids.device
        states = [
            computed[row] if row in computed else self._kept[layer, index].to(device)
            for row, index in enumerate(batch.sequence_indices.tolist())
        ]
        return pad_sequences([state.to(torch.bfloat16) for state in states], batch.input_ids.shape[1])

    def _keep(self, batch: TensorBatch, hidden: dict[int, Tensor]) -> bool:
        """Keep the hidden states of a batch as far as there is room; return whether all are kept."""
        indices, lengths = batch.sequence_indices.tolist(), batch.attention_mask.sum(dim=1).tolist()
        for layer, all_states in hidden.items():
            rounded = all_states.detach().to("cpu", torch.bfloat16)
            for sequence, (index, length) in enumerate(zip(indices, lengths, strict=True)):
                states = rounded[sequence, :length]
                if (layer, index) not in self._kept and states.nbytes <= self._bytes_left:
                    self._kept[layer, index] = states.clone()
                    self._bytes_left -= states.nbytes
        return all((layer, index) in self._kept for layer in hidden for index in indices)


def _rows_of(batch: TensorBatch, rows: Sequence[int]) -> TensorBatch:
    """Return some sequences of a batch, as wide as it is."""
    ids, mask, types = (part[list(rows)] for part in batch[:3])
    return TensorBatch(ids, mask, types, batch.targets, batch.sequence_indices[list(rows)])


def _memory_bytes() -> int:
    """Return the size of the memory, or what a container may use of it."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows has no sysconf
        return _UNKNOWN_MEMORY_BYTES
    try:
        return min(size, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        return size
