"""The Lightning module of fine-tuning: loss, optimizer, and the dev metrics as the runtime computes them."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from bert_models.model import TaskModel
from bert_models.training.base_module import TrainingModule
from bert_models.training.data import ExampleDataset, TensorBatch
from bert_models.training.distributed.placement import settings_identity
from bert_models.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from bert_models.training.length_groups import length_groups
from bert_models.training.objectives import SparseRanking, build_objective
from bert_models.training.optimizer import parameter_groups
from bert_models.training.seeding import seed_from_indices
from bert_models.training.selection import selected_metric
from bert_models.training.settings import TrainSettings
from bert_models.training.sparse_ranking import Regularizer
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import Task

__all__ = ["FineTuning", "run_identity"]


def run_identity(
    task: Task, settings: TrainSettings, world_size: int = 1, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what must match for a run to be resumed. Precision `auto` stays `auto`, whichever was chosen."""
    return {"task": task.to_dict(), **settings_identity(settings, world_size), **(extra or {})}


class FineTuning(TrainingModule):
    """Train a `TaskModel`, and evaluate it on the dev set after every epoch."""

    settings: TrainSettings

    def __init__(
        self,
        model: TaskModel,
        dev: ExampleDataset,
        settings: TrainSettings,
        precision: str,
        class_weights: Tensor | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """Build the objective of the model's task.

        Args:
            model: the model to train.
            dev: the dev set.
            settings: the settings of the run.
            precision: name of the precision, which a resumed run keeps.
            class_weights: weights of the classes in the loss, float32 [L].
            process_group: the processes that train together.
        """
        super().__init__(
            settings, precision, run_identity(model.task, settings, process_group.world_size), process_group
        )
        self.model = model
        self.objective = build_objective(model.task, settings.label_smoothing, class_weights)
        self.dev = dev
        self._losses: list[float] = []
        """Losses of the epoch's batches so far."""
        self._num_logged_losses = 0
        self._step_weights: list[Tensor] = []
        """Weights of the batches of the step so far, where a step has several; see `Objective.weight`."""
        self._typical_weight = 0.0
        """About the weight of a batch; 0 before one is known."""
        self._num_steps = 1
        self._dev_outputs: dict[int, FloatArray] = {}
        self._dev_task = model.task

    @property
    def metric(self) -> str:
        """The dev metric that decides which epoch is best."""
        return selected_metric(self.model.task, self.dev.examples, self.settings)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint |= {"losses": (self._losses, self._num_logged_losses), "typical_weight": self._typical_weight}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._losses, self._num_logged_losses = checkpoint["losses"]
        self._typical_weight = checkpoint["typical_weight"]

    def on_train_epoch_start(self) -> None:
        """Reset the epoch's losses; Lightning does not call this when it resumes within an epoch."""
        self._losses.clear()
        self._num_logged_losses = 0

    def on_train_batch_start(self, batch: TensorBatch, batch_idx: int) -> None:
        """Seed dropout from the batch's indices, so that a resumed run draws the same numbers."""
        seed_from_indices(self.settings.seed, self.current_epoch, batch_idx, *self.process_group.seed_key)

    def training_step(self, batch: TensorBatch, index: int) -> Tensor:
        """Return the loss of one batch, scaled so that an optimizer step has the gradient of its joint batch.

        That is the batch of all processes, and of all batches that are accumulated.
        """
        outputs = self._outputs(batch)
        loss = value = self.loss(batch, outputs)
        num_processes, num_batches = self.process_group.world_size, self.settings.gradient_accumulation_steps
        if num_processes > 1 or num_batches > 1:
            weight = self.objective.weight(batch.targets) if len(batch.sequence_indices) else loss.new_zeros(())
            if not weight and loss.isnan():
                loss = value = outputs.float().sum() * 0  # the mean over nothing
            if num_processes > 1:
                loss, value, weight = self._joint_loss(loss, weight)
            if num_batches > 1:
                loss = self._accumulated_loss(loss, weight)
        self._losses.append(self.show_loss(value))
        return loss

    def _outputs(self, batch: TensorBatch) -> Tensor:
        """Return what the model returns for a batch; queries and documents are computed apart, without long padding.

        Sharded parameters are gathered in each call, of which all processes must have as many: then it is one.
        """
        inputs = batch.input_ids, batch.attention_mask, batch.token_type_ids
        has_several_texts = self.objective.compares_texts and len(batch.input_ids) > len(batch.targets)
        if not has_several_texts or self.process_group.is_sharded:
            return cast(Tensor, self.model(*inputs))
        lengths = batch.attention_mask.sum(dim=1).tolist()
        groups = length_groups(lengths)
        if len(groups) == 1:
            return cast(Tensor, self.model(*inputs))
        parts = [
            self.model(*(tensor[group, : max(lengths[index] for index in group)] for tensor in inputs))
            for group in groups
        ]
        order = torch.tensor([index for group in groups for index in group], device=batch.input_ids.device)
        return torch.cat(parts)[order.argsort()]

    def _joint_loss(self, loss: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss to minimize in this process, the mean over the parts of all processes, and their weight.

        For weights w_r (see `Objective.weight`) and N processes these are `N w_r loss_r / Σ w`, `Σ w loss / Σ w` and
        `Σ w`.
        """
        total, total_weight = self.process_group.all_reduce(torch.stack([loss.detach() * weight, weight]))
        divisor = torch.where(total_weight > 0, total_weight, 1)  # nothing may be labelled in any process
        # Lightning averages gradients over the processes.
        return loss * weight * self.process_group.world_size / divisor, total / divisor, total_weight

    def _accumulated_loss(self, loss: Tensor, weight: Tensor) -> Tensor:
        """Return `w_i loss_i / w` of a step's batch, times the batches of a step, which Lightning divides by.

        `w` is the mean weight of the step before, of the first step that of its first labelled batch: about what a
        batch weighs, so that FP16 does not overflow. `_divide_gradients` makes it `w_i loss_i / Σ w_i`: how many
        batches come, and their weights, is known only then.
        """
        if not self._typical_weight:
            self._typical_weight = float(weight)
        self._step_weights.append(weight.detach())
        return loss * weight / (self._typical_weight or 1.0) * self.settings.gradient_accumulation_steps

    def _divide_gradients(self) -> None:
        """Divide the gradients that a step has accumulated by the weight of its batches."""
        total = float(torch.stack(self._step_weights).sum())
        factor = self._typical_weight / total if total else 1.0
        self._typical_weight = total / len(self._step_weights)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def loss(self, batch: TensorBatch, outputs: Tensor) -> Tensor:
        """Return the loss to minimize, float32 [], from the model's outputs for a batch."""
        if isinstance(self.objective, SparseRanking):
            self.objective.regularizer = Regularizer(
                self.settings.query_flops, self.settings.document_flops, self.global_step / self._num_steps
            )
        return self.objective.loss(self.model, outputs, batch.targets)

    def extra_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained besides the model's."""
        return []

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Divide accumulated gradients; log the mean loss of this step, and the learning rate of the head."""
        losses, weights = self._losses[self._num_logged_losses :], None
        self._num_logged_losses = len(self._losses)
        if self._step_weights:
            self._divide_gradients()
            weights = torch.stack(self._step_weights).tolist() if any(self._step_weights) else None
            self._step_weights.clear()
        loss = float(np.average(losses, weights=weights))
        self.log_row({"loss": loss, "lr": self.settings.lr * self.lr_factor(self.global_step)})

    def validation_step(self, batch: TensorBatch, index: int) -> None:
        """Collect the raw outputs of one dev batch."""
        outputs = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        self._dev_outputs.update(self.dev.split(batch, outputs))
        if not index:
            self._dev_task = self.model.runtime_task()  # here, where sharded parameters are gathered

    def on_validation_epoch_end(self) -> None:
        """Compute the task's metrics with the runtime's post-processing."""
        parts = self.process_group.gather(self._dev_outputs)
        metrics = self.process_group.from_rank_zero(lambda: self._score(parts))
        self._dev_outputs = {}
        self.log_dev_metrics(metrics)
        train_loss = float(np.mean(self._losses))
        self.history.append({"epoch": self.current_epoch + 1, "train_loss": train_loss, **metrics})

    def _score(self, parts: Sequence[dict[int, FloatArray]]) -> dict[str, float]:
        """Return the dev metrics, from the outputs of all processes; with a tuned threshold if the task has one."""
        arrays = {index: array for part in parts for index, array in part.items()}
        task, outputs = self._dev_task, self.dev.outputs(arrays)
        metrics = task.score(outputs, self.dev.examples)
        if (tuned := task.with_tuned_threshold(metrics)) != task:
            metrics = tuned.score(outputs, self.dev.examples)
        return metrics

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW with linear warm-up and decay."""
        settings = self.settings
        groups = parameter_groups(self.model, settings.weight_decay, settings.lr, settings.layer_lr_decay)
        if extra := self.extra_parameters():
            groups.append({"params": extra, "weight_decay": settings.weight_decay})
        # The trainer estimates optimizer steps, not batches.
        self._num_steps = int(self.trainer.estimated_stepping_batches)
        return self.build_optimizer(groups, steps=self._num_steps)
