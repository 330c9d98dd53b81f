"""The Lightning module of fine-tuning: loss, optimizer, and the dev metric as the runtime computes it."""

from dataclasses import asdict
from typing import Any

import numpy as np
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bert_models.model import TaskModel
from bert_models.training.data import Examples, TensorBatch
from bert_models.training.logs import LoggedModule
from bert_models.training.objectives import build_objective
from bert_models.training.optimizer import linear_schedule, parameter_groups
from bert_models.training.settings import TrainSettings
from bert_models.training.steps import finite_value, seed_by_place
from bert_runtime.tasks import FloatArray, Task

__all__ = ["FineTuning", "described_run"]


def described_run(task: Task, settings: TrainSettings) -> dict[str, Any]:
    """What must be the same for a run to be resumed. `auto` precision stays `auto`, whatever it measures."""
    return {"task": task.to_dict(), **asdict(settings)}


class FineTuning(LoggedModule):
    """Trains a `TaskModel` and measures it on the dev set after every epoch."""

    def __init__(
        self,
        model: TaskModel,
        dev: Examples,
        settings: TrainSettings,
        precision: str,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.precision = precision
        self.model = model
        self.objective = build_objective(model.task, settings.label_smoothing, class_weights)
        self.dev = dev
        self.settings = settings
        self.history: list[dict[str, float]] = []
        """One entry per finished epoch: mean training loss and the dev metrics."""
        self._losses: list[float] = []
        self._logged_losses = 0
        self._dev_rows: dict[int, FloatArray] = {}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history, so that a resumed run reports all of its epochs, and what run it is."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["history"] = self.history
        checkpoint["run"] = described_run(self.model.task, self.settings)
        checkpoint["precision"] = self.precision

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.history = checkpoint["history"]

    def on_train_epoch_start(self) -> None:
        """Starts the epoch's mean loss."""
        self._losses.clear()
        self._logged_losses = 0

    def on_train_batch_start(self, batch: TensorBatch, batch_idx: int) -> None:
        """Seeds dropout by the batch's place, so that it is the same in a resumed run, whatever was drawn before."""
        seed_by_place(self.settings.seed, self.current_epoch, batch_idx)

    def training_step(self, batch: TensorBatch, index: int) -> Tensor:
        """The loss of one batch."""
        logits = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        step_loss = self.objective.loss(self.model, logits, batch.targets)
        self._losses.append(finite_value(self, step_loss))
        return step_loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Logs the mean loss of the batches that this step is made of, and its learning rate at the top."""
        losses = self._losses[self._logged_losses :]
        self._logged_losses = len(self._losses)
        self.write_row({"loss": float(np.mean(losses)), "lr": self.settings.lr * self._schedule(self.global_step)})

    def validation_step(self, batch: TensorBatch, index: int) -> None:
        """Raw outputs of one dev batch."""
        outputs = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        self._dev_rows.update(self.dev.split(batch, outputs))

    def on_validation_epoch_end(self) -> None:
        """The task's metrics, by the post-processing that the runtime ships."""
        task, outputs = self.model.runtime_task(), self.dev.outputs(self._dev_rows)
        metrics = task.score(outputs, self.dev.examples)
        if (tuned := task.tuned(metrics)) != task:
            metrics = tuned.score(outputs, self.dev.examples)
        self._dev_rows.clear()
        self.write_measured(metrics)
        train_loss = float(np.mean(self._losses))
        self.history.append({"epoch": self.current_epoch + 1, "train_loss": train_loss, **metrics})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with linear warm-up and decay, stepped with the optimizer."""
        steps = int(self.trainer.estimated_stepping_batches)  # of the optimizer, not batches
        self._schedule = linear_schedule(steps, self.settings.warmup_ratio)
        settings = self.settings
        groups = parameter_groups(self.model, settings.weight_decay, settings.lr, settings.layer_lr_decay)
        optimizer: Optimizer = AdamW(groups, lr=self.settings.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._schedule), "interval": "step"},
        }
