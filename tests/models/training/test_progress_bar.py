"""The bar of a training: the time left for the whole run."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import TQDMProgressBar

from bert_models.training import progress_bar
from bert_models.training.progress_bar import ProgressBar


@pytest.mark.parametrize(("total", "shown"), [(110, "1:30"), (math.inf, None)])
def test_time_left_for_the_run(monkeypatch: pytest.MonkeyPatch, total: float, shown: str | None) -> None:
    """A run that was resumed at step 10, and has taken 10 s for the 10 steps since."""
    now = 100.0
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now)
    monkeypatch.setattr(TQDMProgressBar, "on_train_start", lambda *args: None)
    monkeypatch.setattr(TQDMProgressBar, "get_metrics", lambda *args: {"v_num": 3, "loss": 0.5})
    trainer: Any = SimpleNamespace(global_step=10, estimated_stepping_batches=total)
    module: Any = None
    bar = ProgressBar()
    bar.on_train_start(trainer, module)
    assert bar.get_metrics(trainer, module) == {"loss": 0.5}  # nothing is known before the first step
    now, trainer.global_step = 110.0, 20
    expected = {"loss": 0.5} if shown is None else {"loss": 0.5, "run_left": shown}
    assert bar.get_metrics(trainer, module) == expected
