"""The Lightning module of pre-training: losses, optimizer, and evaluation on held-out documents."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from bert_models.errors import TrainingError
from bert_models.pretraining.batches import PretrainingBatch, PretrainingBatches, batch_loader
from bert_models.pretraining.model import MetricSum, PretrainingModel
from bert_models.pretraining.settings import PretrainSettings
from bert_models.pretraining.token_cache import MAX_DEV_TOKENS
from bert_models.training.base_module import TrainingModule
from bert_models.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from bert_models.training.optimizer import parameter_groups
from bert_models.training.seeding import seed_from_indices

__all__ = ["EpochLoader", "Pretraining"]

_TRAIN_KEY, _DEV_KEY = 0, 1
"""Seed keys that keep the random numbers of training and evaluation apart."""


class EpochLoader:
    """Load the batches of one epoch, from where an interrupted run stopped; Lightning saves and restores the position.

    An epoch has whole optimizer steps of `gradient_accumulation_steps` batches; the remaining batches are skipped.
    Otherwise its last step would have fewer batches, evaluations would fall between the batches of a step, and the
    state that is saved there would lack the gradients so far. The batches of a step know how many predictions all of
    them have.
    """

    def __init__(self, batches: PretrainingBatches, gradient_accumulation_steps: int = 1) -> None:
        """Start with the first batch.

        Raises:
            TrainingError: the epoch has too few batches for one optimizer step.
        """
        if len(batches) < gradient_accumulation_steps:
            raise TrainingError(
                f"{len(batches)} batches of {batches.settings.batch_size} sequences in an epoch are too few for a step "
                f"of {gradient_accumulation_steps}; lower --accumulate or --batch-size"
            )
        self._batches = batches
        self._step = gradient_accumulation_steps
        self._length = len(batches) // self._step * self._step
        self._next = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[PretrainingBatch]:
        for first in range(self._next, len(self), self._step):
            batches = [self._batches[index] for index in range(first, first + self._step)]
            counts = [batch.num_items() for batch in batches]
            items = {name: torch.stack([count[name] for count in counts]).sum() for name in counts[0]}
            for index, batch in enumerate(batches, first):
                self._next = index + 1
                yield batch if self._step == 1 else batch._replace(step_items=items)
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        """Return the index of the next batch."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the batch that `state_dict` returned."""
        self._next = state["next"]


class Pretraining(TrainingModule):
    """Train a `PretrainingModel` for a number of steps, and evaluate it at intervals."""

    settings: PretrainSettings

    def __init__(
        self,
        model: PretrainingModel,
        train: PretrainingBatches,
        dev: PretrainingBatches,
        settings: PretrainSettings,
        precision: str,
        identity: Mapping[str, Any],
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """Start without history.

        Args:
            model: the model to train.
            train: this process's part of the training batches.
            dev: all batches of the held-out documents.
            settings: the settings of the run.
            precision: name of the precision, which a resumed run keeps.
            identity: what must match for the run to be resumed.
            process_group: the processes that train together.
        """
        super().__init__(settings, precision, identity, process_group)
        self.model, self.train_batches, self.dev_batches = model, train, dev
        self._losses: list[float] = []
        """Losses of the steps since the last evaluation."""
        self._step_metrics: list[dict[str, MetricSum]] = []
        """Metrics of the batches since the last optimizer step, without gradients."""
        self._dev_sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Total and number of items of each dev metric so far."""

    def train_dataloader(self) -> EpochLoader:
        """Return the batches of the current epoch."""
        self.train_batches.set_epoch(self.current_epoch)
        return EpochLoader(self.train_batches, self.settings.gradient_accumulation_steps)

    def val_dataloader(self) -> Any:
        """Return this process's share of the dev batches, with the same masks in every evaluation."""
        return batch_loader(self.dev_batches, self.process_group.shard_indices(self._num_dev_batches))

    @cached_property
    def _num_dev_batches(self) -> int:
        """The batches that are evaluated: all, unless the documents have more tokens than are to be held out."""
        tokens = int(self.dev_batches.cache.document_tokens[self.dev_batches.documents].sum())
        return math.ceil(len(self.dev_batches) * min(1.0, MAX_DEV_TOKENS / tokens))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["losses"] = self._losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._losses = checkpoint["losses"]

    def _measure(self, batch: PretrainingBatch, *indices: int) -> dict[str, MetricSum]:
        """Compute the metrics of a batch, with random numbers that follow from its indices only."""
        seed_from_indices(self.settings.seed, *indices)
        sentence_labels = batch.sentence_labels
        if sentence_labels is None:
            sentence_labels = torch.zeros(len(batch.input_ids), dtype=torch.int64, device=batch.input_ids.device)
        return self.model.measure(
            batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, sentence_labels
        )

    def training_step(self, batch: PretrainingBatch, index: int) -> Tensor:
        """Return the loss of one batch, scaled so that an optimizer step has the gradient of its joint batch.

        That is the batch of all processes, and of all batches that are accumulated: each loss is a mean over all of its
        predictions.
        """
        part = self._measure(batch, _TRAIN_KEY, self.current_epoch, index, *self.process_group.seed_key)
        joint = {name: MetricSum(*(value.detach() for value in metric)) for name, metric in part.items()}
        if self.process_group.world_size > 1:
            joint = self._sum_over_processes(joint)
        self.show_loss(self.model.loss(joint))
        self._step_metrics.append(joint)
        items = {name: metric.num_items for name, metric in joint.items()}
        if batch.step_items is not None:
            items = self._sum_items(batch.step_items)
        # Lightning averages gradients over the processes, and over the batches of a step.
        factor = self.process_group.world_size * self.settings.gradient_accumulation_steps
        losses = {name: metric.total * factor for name, metric in part.items() if name.endswith("_loss")}
        return self.model.loss({name: MetricSum(total, items[name]) for name, total in losses.items()})

    def _sum_over_processes(self, metrics: Mapping[str, MetricSum]) -> dict[str, MetricSum]:
        """Return the metrics of the joint batch of all processes, without gradients."""
        values = [torch.stack([value.double() for value in metric]) for metric in metrics.values()]
        sums = self.process_group.all_reduce(torch.stack(values))
        return {name: MetricSum(*pair) for name, pair in zip(metrics, sums.unbind(), strict=True)}

    def _sum_items(self, items: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of the numbers of predictions over all processes."""
        sums = self.process_group.all_reduce(torch.stack([count.double() for count in items.values()]))
        return dict(zip(items, sums.unbind(), strict=True))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the losses of this step, and its learning rate."""
        batches = self._step_metrics
        joint = {
            name: MetricSum(
                *(torch.stack(values).sum() for values in zip(*(batch[name] for batch in batches), strict=True))
            )
            for name in batches[0]
        }
        batches.clear()
        self._losses.append(self.model.loss(joint).item())
        terms = {name: metric.mean.item() for name, metric in joint.items() if name.endswith("_loss")}
        losses = {"loss": self._losses[-1], **(terms if len(terms) > 1 else {})}
        self.log_row({**losses, "lr": self.settings.lr * self.lr_factor(self.global_step)})

    def validation_step(self, batch: PretrainingBatch, index: int) -> None:
        """Add the metrics of one dev batch."""
        batch_index = index * self.process_group.world_size + self.process_group.rank
        counts = batch_index < self._num_dev_batches  # else it is repeated, see `ProcessGroup.shard_indices`
        for name, (total, num_items) in self._measure(batch, _DEV_KEY, batch_index).items():
            self._dev_sums[name][0] += float(total) * counts
            self._dev_sums[name][1] += float(num_items) * counts

    def on_validation_epoch_end(self) -> None:
        """Log the dev metrics, means over all predictions of the dev batches."""
        values = torch.tensor(list(self._dev_sums.values()), dtype=torch.float64, device=self.device)
        sums = self.process_group.all_reduce(values).tolist()
        metrics = {
            name: total / max(num_items, 1.0) for name, (total, num_items) in zip(self._dev_sums, sums, strict=True)
        }
        self._dev_sums.clear()
        if self.history and self.history[-1]["step"] == self.global_step:
            return  # Lightning starts a resumed run with the evaluation that it ended with
        self.log_dev_metrics(metrics)
        train_loss = float(np.mean(self._losses)) if self._losses else float("nan")
        self._losses.clear()
        self.history.append({"step": self.global_step, "train_loss": train_loss, **metrics})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW with linear warm-up and decay."""
        return self.build_optimizer(parameter_groups(self.model, self.settings.weight_decay), self.settings.steps)
