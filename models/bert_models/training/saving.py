"""Saving the state of a run: whole or not at all, within an epoch now and then, and when it is asked to stop."""

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

from bert_runtime.bundle.atomic_files import temp_path

__all__ = ["AtomicCheckpointIO", "MidEpochCheckpoint"]

_LEAST_INTERVAL_S = 60.0
"""Between two savings within an epoch, at least."""

_MOST_SHARE = 0.02
"""Of the time, what saving may take."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the one that it replaces.

    Lightning's own goes through the folder for temporary files, which may be too small or on another disk, from where
    the file is then copied over the last one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Takes the place of the file at `path` when all has been written."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = temp_path(target)
        try:
            torch.save(checkpoint, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


class MidEpochCheckpoint(Callback):
    """Saves the whole state between two optimizer steps: after a minute or more, and on Ctrl-C or SIGTERM.

    A signal ends the run after the step it falls into, as `KeyboardInterrupt`; after an epoch's last step only when
    that epoch has been measured, and in the last epoch not at all. A second one ends it at once, with what was saved
    before. Of several processes the first decides for all.
    """

    def __init__(self, path: Path, accumulate: int) -> None:
        self._path = path
        self._accumulate = accumulate
        self._interval_s = _LEAST_INTERVAL_S
        self._last = time.monotonic()
        self._asked = False
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes the signals, in the place of Lightning, which would end between any two instructions."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._ask) for number in _SIGNALS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._restore()  # the second one is as usual

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends the run where it was asked to at the end of the epoch before, which has been saved."""
        if trainer.strategy.broadcast(self._asked):
            raise KeyboardInterrupt

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves if it is time, where a step has just ended; an epoch's end is saved when it has been measured."""
        ended = batch_idx + 1 == trainer.num_training_batches
        if ended or (batch_idx + 1) % self._accumulate:
            return
        due = time.monotonic() - self._last >= self._interval_s
        asked, due = trainer.strategy.broadcast((self._asked, due))
        if asked or due:
            self._save(trainer)
        if asked:
            raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        begin = time.monotonic()
        trainer.save_checkpoint(self._path)
        self._last = time.monotonic()
        self._interval_s = max(_LEAST_INTERVAL_S, (self._last - begin) / _MOST_SHARE)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gives the signals back."""
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The same where the run ends otherwise."""
        self._restore()
