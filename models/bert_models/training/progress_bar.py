"""Lightning's progress bar, with the time left for the whole run."""

import math
import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import TQDMProgressBar

__all__ = ["ProgressBar"]


class ProgressBar(TQDMProgressBar):
    """Lightning's bar of an epoch, which also shows the time left for the run.

    It ends its line if training fails, so that the error starts on a new one.
    """

    def on_train_start(self, *args: Any) -> None:
        super().on_train_start(*args)
        (trainer, *_) = args
        self._start_s = time.monotonic()
        self._first_step = trainer.global_step

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Return what the bar shows: the logged values, and the time left at the pace so far, evaluations included."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)  # the number of the logger's folder
        done = trainer.global_step - self._first_step
        total = trainer.estimated_stepping_batches
        if done > 0 and math.isfinite(total):
            left_s = (time.monotonic() - self._start_s) / done * (total - trainer.global_step)
            metrics["run_left"] = self._format_time(left_s)
        return metrics

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self._train_progress_bar is not None:
            self.train_progress_bar.close()

    @staticmethod
    def _format_time(seconds: float) -> str:
        minutes, rest = divmod(round(max(seconds, 0)), 60)
        return f"{minutes}:{rest:02}"
