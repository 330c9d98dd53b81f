"""The Lightning module of fine-tuning: loss, optimizer, and the dev metric as the runtime computes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bert_models.model import TaskModel
from bert_models.training.data import ExampleDataset, TensorBatch
from bert_models.training.distributed.placement import settings_identity
from bert_models.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from bert_models.training.distributed.sharding import shard
from bert_models.training.logs import LoggedModule
from bert_models.training.objectives import build_objective
from bert_models.training.optimizer import adamw, linear_schedule, parameter_groups
from bert_models.training.seeding import finite_value, seed_from_indices
from bert_models.training.settings import TrainSettings
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task

__all__ = ["FineTuning", "run_identity"]


def run_identity(
    task: Task, settings: TrainSettings, world_size: int = 1, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What must be the same for a run to be resumed. `auto` precision stays `auto`, whatever it measures."""
    return {"task": task.to_dict(), **settings_identity(settings, world_size), **(more or {})}


class FineTuning(LoggedModule):
    """Trains a `TaskModel` and measures it on the dev set after every epoch."""

    def __init__(
        self,
        model: TaskModel,
        dev: ExampleDataset,
        settings: TrainSettings,
        precision: str,
        class_weights: Tensor | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        super().__init__()
        self.process_group = process_group
        self.precision = precision
        self.model = model
        self.objective = build_objective(model.task, settings.label_smoothing, class_weights)
        self.dev = dev
        self.settings = settings
        self.run = run_identity(model.task, settings, process_group.world_size)
        """What must be the same for a run to be resumed."""
        self.history: list[dict[str, float]] = []
        """One entry per finished epoch: mean training loss and the dev metrics."""
        self._losses: list[float] = []
        self._logged_losses = 0
        self._dev_rows: dict[int, FloatArray] = {}
        self._dev_task = model.task

    def configure_model(self) -> None:
        """Divides the parameters among the processes where that is the strategy."""
        if self.process_group.is_sharded:
            shard(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history, so that a resumed run reports all of its epochs, and what run it is."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["history"], checkpoint["losses"] = self.history, (self._losses, self._logged_losses)
        checkpoint["run"] = self.run
        checkpoint["precision"] = self.precision

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.history, (self._losses, self._logged_losses) = checkpoint["history"], checkpoint["losses"]

    def on_train_epoch_start(self) -> None:
        """Starts the epoch's mean loss; not called where an epoch goes on."""
        self._losses.clear()
        self._logged_losses = 0

    def on_train_batch_start(self, batch: TensorBatch, batch_idx: int) -> None:
        """Seeds dropout by the batch's place, so that it is the same in a resumed run, whatever was drawn before."""
        seed_from_indices(self.settings.seed, self.current_epoch, batch_idx, *self.process_group.seed_key)

    def training_step(self, batch: TensorBatch, index: int) -> Tensor:
        """The loss of one batch, or of this process's part of it so that the mean of all has the batch's gradient."""
        outputs = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        loss = value = self.loss(batch, outputs)
        if self.process_group.world_size > 1:
            loss, value = self._shared(loss, outputs, batch)
        self._losses.append(finite_value(self, value))
        return loss

    def _shared(self, loss: Tensor, outputs: Tensor, batch: TensorBatch) -> tuple[Tensor, Tensor]:
        """What to minimise here, and the mean loss over the parts of all processes, by what each part counts."""
        weight = self.objective.weight(batch.targets) if len(batch.rows) else loss.new_zeros(())
        if not weight and loss.isnan():
            loss = outputs.float().sum() * 0  # the mean of nothing
        total, whole = self.process_group.all_reduce(torch.stack([loss.detach() * weight, weight]))
        # Lightning averages gradients over the processes.
        return loss * weight * self.process_group.world_size / whole, total / whole

    def loss(self, batch: TensorBatch, outputs: Tensor) -> Tensor:
        """What is minimised, of what the model has just computed for a batch, float32 []."""
        return self.objective.loss(self.model, outputs, batch.targets)

    def extra_parameters(self) -> list[nn.Parameter]:
        """What is trained besides the model."""
        return []

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Logs the mean loss of the batches that this step is made of, and its learning rate at the top."""
        losses = self._losses[self._logged_losses :]
        self._logged_losses = len(self._losses)
        self.log_row({"loss": float(np.mean(losses)), "lr": self.settings.lr * self._schedule(self.global_step)})

    def validation_step(self, batch: TensorBatch, index: int) -> None:
        """Raw outputs of one dev batch."""
        outputs = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        self._dev_rows.update(self.dev.split(batch, outputs))
        if not index:
            self._dev_task = self.model.runtime_task()  # here all parameters are at hand, also where they are shared

    def on_validation_epoch_end(self) -> None:
        """The task's metrics, by the post-processing that the runtime ships."""
        parts = self.process_group.gather(self._dev_rows)
        metrics = self.process_group.from_rank_zero(lambda: self._metrics(parts))
        self._dev_rows = {}
        self.log_dev_metrics(metrics)
        train_loss = float(np.mean(self._losses))
        self.history.append({"epoch": self.current_epoch + 1, "train_loss": train_loss, **metrics})

    def _metrics(self, parts: Sequence[dict[int, FloatArray]]) -> dict[str, float]:
        """Of the outputs that the processes have computed."""
        rows = {number: row for part in parts for number, row in part.items()}
        task, outputs = self._dev_task, self.dev.outputs(rows)
        metrics = task.score(outputs, self.dev.examples)
        if (tuned := task.with_tuned_threshold(metrics)) != task:
            metrics = tuned.score(outputs, self.dev.examples)
        return metrics

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with linear warm-up and decay, stepped with the optimizer."""
        steps = int(self.trainer.estimated_stepping_batches)  # of the optimizer, not batches
        self._schedule = linear_schedule(steps, self.settings.warmup_ratio)
        settings = self.settings
        groups = parameter_groups(self.model, settings.weight_decay, settings.lr, settings.layer_lr_decay)
        if extra := self.extra_parameters():
            groups.append({"params": extra, "weight_decay": settings.weight_decay})
        optimizer: Optimizer = adamw(groups, self.settings.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._schedule), "interval": "step"},
        }
