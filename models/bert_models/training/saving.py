"""Saving the state of a run within an epoch: now and then, and when it is asked to stop."""

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from bert_runtime.files import partial_path

__all__ = ["SaveWithinEpochs"]

_LEAST_INTERVAL_S = 60.0
"""Between two savings within an epoch, at least."""

_MOST_SHARE = 0.02
"""Of the time, what saving may take."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SaveWithinEpochs(Callback):
    """Saves the whole state between two optimizer steps: after a minute or more, and on Ctrl-C or SIGTERM.

    A signal ends the run after the step it falls into, as `KeyboardInterrupt`; a second one ends it at once, with what
    was saved before. Of several processes the first decides for all.
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
        begin, partial = time.monotonic(), partial_path(self._path)
        trainer.save_checkpoint(partial)  # which waits for all processes
        if trainer.is_global_zero:
            partial.replace(self._path)
        self._last = time.monotonic()
        self._interval_s = max(_LEAST_INTERVAL_S, (self._last - begin) / _MOST_SHARE)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gives the signals back."""
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The same where the run ends otherwise."""
        self._restore()
