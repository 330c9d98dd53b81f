"""Save the state of a run: atomically, from time to time within an epoch, and when a signal asks it to stop."""

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from bert_runtime.bundle.atomic_files import atomic_path

__all__ = ["AtomicCheckpointIO", "MidEpochCheckpoint"]

_MIN_INTERVAL_S = 60.0
"""Minimum seconds between two saves within an epoch."""

_MAX_SAVE_FRACTION = 0.02
"""Maximum fraction of the time that saving within epochs may take; the interval grows accordingly."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning plugin that writes a checkpoint to a temporary file next to the old one and then replaces that.

    Lightning's own plugin writes through the system's temporary folder, which may be too small or on another disk, and
    then copies the file over the old checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write `checkpoint` and replace the file at `path` when all of it has been written."""
        final_path = Path(path)
        final_path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(final_path) as partial:
            torch.save(checkpoint, partial)


class MidEpochCheckpoint(Callback):
    """Save the state between two optimizer steps: at least a minute apart, and on SIGINT (Ctrl-C) or SIGTERM.

    A signal ends the run with `KeyboardInterrupt` after the step in which it arrives. In an epoch's last step it ends
    the run after the epoch's evaluation, and in the last epoch's not at all. A second signal ends the run at once, with
    what was saved before. Rank zero decides for all processes.
    """

    def __init__(self, path: Path, gradient_accumulation_steps: int) -> None:
        self._path = path
        self._gradient_accumulation_steps = gradient_accumulation_steps
        self._interval_s = _MIN_INTERVAL_S
        self._last_save = time.monotonic()
        self._stop_requested = False
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the signal handlers: Lightning's would end the run between any two instructions."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._request_stop) for number in _SIGNALS}

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True
        self._restore_handlers()  # so that a second signal has its usual effect

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the run if a signal arrived at the end of the epoch before, which has been saved."""
        if trainer.strategy.broadcast(self._stop_requested):
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after an optimizer step if it is due; the end of an epoch is saved after its evaluation instead."""
        is_last = batch_idx + 1 == trainer.num_training_batches
        if is_last or (batch_idx + 1) % self._gradient_accumulation_steps:
            return
        is_due = time.monotonic() - self._last_save >= self._interval_s
        stop_requested, is_due = trainer.strategy.broadcast((self._stop_requested, is_due))
        if stop_requested or is_due:
            self._save(trainer)
        if stop_requested:
            raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        start = time.monotonic()
        trainer.save_checkpoint(self._path)
        self._last_save = time.monotonic()
        self._interval_s = max(_MIN_INTERVAL_S, (self._last_save - start) / _MAX_SAVE_FRACTION)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the signal handlers."""
        self._restore_handlers()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the signal handlers when the run ends with an error."""
        self._restore_handlers()
