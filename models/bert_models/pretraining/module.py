"""The Lightning module of pre-training: losses, optimizer, and measurements on documents that are held out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bert_models.errors import TrainingError
from bert_models.pretraining.batches import PretrainingBatch, PretrainingBatches, batch_loader
from bert_models.pretraining.model import MetricSum, PretrainingModel, mean
from bert_models.pretraining.settings import PretrainSettings
from bert_models.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from bert_models.training.distributed.sharding import shard
from bert_models.training.logs import LoggedModule
from bert_models.training.optimizer import adamw, linear_schedule, parameter_groups
from bert_models.training.seeding import finite_value, seed_from_indices

__all__ = ["EpochLoader", "Pretraining"]


class EpochLoader:
    """The batches of one epoch, from where an interrupted run stopped; Lightning saves and restores the place.

    An epoch is whole steps of `accumulate` batches; the fewer that are left over are not seen in it. Else a step would
    be cut short at its end, measurements would fall between two batches of one step, and the state that is saved there
    lacks the gradients so far. Raises `TrainingError` where there are not enough for a step.
    """

    def __init__(self, batches: PretrainingBatches, accumulate: int = 1) -> None:
        if len(batches) < accumulate:
            raise TrainingError(
                f"{len(batches)} batches of {batches.settings.batch_size} sequences in an epoch are too few for a step "
                f"of {accumulate}; lower --accumulate or --batch-size"
            )
        self._batches = batches
        self._length = len(batches) // accumulate * accumulate
        self._next = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[PretrainingBatch]:
        for number in range(self._next, len(self)):
            self._next = number + 1
            yield self._batches[number]
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        """The number of the batch that comes next."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The inverse of `state_dict`."""
        self._next = state["next"]


class Pretraining(LoggedModule):
    """Trains a `PretrainingModel` for a number of steps, and measures it from time to time."""

    def __init__(
        self,
        model: PretrainingModel,
        train: PretrainingBatches,
        dev: PretrainingBatches,
        settings: PretrainSettings,
        precision: str,
        run: Mapping[str, Any],
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """`run` is what must be the same for an interrupted run to be resumed; `train` is this process's part of the
        batches, and `dev` all."""
        super().__init__()
        self.process_group = process_group
        self.model, self.train_batches, self.dev_batches = model, train, dev
        self.settings, self.precision, self.run = settings, precision, dict(run)
        self.history: list[dict[str, float]] = []
        """One entry per measurement: the step, the mean training loss since the last one, and what was measured."""
        self._losses: list[float] = []
        self._parts: list[dict[str, float]] = []
        """Losses of the batches since the last step of the optimizer, with those that they are made of."""
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def configure_model(self) -> None:
        """Divides the parameters among the processes where that is the strategy."""
        if self.process_group.is_sharded:
            shard(self)

    def train_dataloader(self) -> EpochLoader:
        """The batches of the current epoch."""
        self.train_batches.set_epoch(self.current_epoch)
        return EpochLoader(self.train_batches, self.settings.gradient_accumulation_steps)

    def val_dataloader(self) -> Any:
        """This process's share of the batches, the same with the same masks every time."""
        return batch_loader(self.dev_batches, self.process_group.shard_indices(len(self.dev_batches)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history and what run it is, so that a resumed run can go on."""
        super().on_save_checkpoint(checkpoint)
        checkpoint |= {"history": self.history, "losses": self._losses, "precision": self.precision, "run": self.run}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The inverse of `on_save_checkpoint`."""
        super().on_load_checkpoint(checkpoint)
        self.history, self._losses = checkpoint["history"], checkpoint["losses"]

    def _measure(self, batch: PretrainingBatch, *place: int) -> dict[str, Any]:
        """What the model measures, with random numbers that follow from the batch's place alone."""
        seed_from_indices(self.settings.seed, *place)
        labels = batch.sentence_labels
        if labels is None:
            labels = torch.zeros(len(batch.input_ids), dtype=torch.int64, device=batch.input_ids.device)
        return self.model.measure(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.labels, labels)

    def training_step(self, batch: PretrainingBatch, index: int) -> Tensor:
        """The loss of one batch, or of this process's part of it so that the mean of all has the batch's gradient."""
        own = whole = self._measure(batch, 0, self.current_epoch, index, *self.process_group.seed_key)
        loss = value = self.model.loss(own)
        if self.process_group.world_size > 1:
            whole = self._summed(own)
            value = self.model.loss(whole)
            # Lightning averages gradients over the processes.
            factor = self.process_group.world_size
            loss = self.model.loss({name: MetricSum(own[name].total * factor, whole[name].number) for name in own})
        self._losses.append(finite_value(self, value))
        parts = {name: mean(each).item() for name, each in whole.items() if name.endswith("_loss")}
        self._parts.append({"loss": self._losses[-1], **(parts if len(parts) > 1 else {})})
        return loss

    def _summed(self, measured: Mapping[str, MetricSum]) -> dict[str, MetricSum]:
        """What all processes have measured together; numbers without gradients."""
        values = [torch.stack([part.detach().double() for part in each]) for each in measured.values()]
        sums = self.process_group.all_reduce(torch.stack(values))
        return {name: MetricSum(*pair) for name, pair in zip(measured, sums.unbind(), strict=True)}

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Logs the mean losses of the batches that this step is made of, and its learning rate."""
        means = {name: float(np.mean([each[name] for each in self._parts])) for name in self._parts[0]}
        self._parts.clear()
        self.log_row({**means, "lr": self.settings.lr * self._schedule(self.global_step)})

    def validation_step(self, batch: PretrainingBatch, index: int) -> None:
        """Adds up what one batch of held-out documents measures."""
        place = index * self.process_group.world_size + self.process_group.rank
        counts = place < len(self.dev_batches)  # and is not there only because the others have one more
        for name, (total, number) in self._measure(batch, 1, place).items():
            self._sums[name][0] += float(total) * counts
            self._sums[name][1] += float(number) * counts

    def on_validation_epoch_end(self) -> None:
        """The means over all held-out batches."""
        sums = self.process_group.all_reduce(
            torch.tensor(list(self._sums.values()), dtype=torch.float64, device=self.device)
        )
        measured = {
            name: total / max(number, 1.0) for name, (total, number) in zip(self._sums, sums.tolist(), strict=True)
        }
        self._sums.clear()
        if self.history and self.history[-1]["step"] == self.global_step:
            return  # Lightning begins a resumed run with the measurement that it ended with
        self.log_dev_metrics(measured)
        train_loss = float(np.mean(self._losses)) if self._losses else float("nan")
        self._losses.clear()
        self.history.append({"step": self.global_step, "train_loss": train_loss, **measured})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with linear warm-up and decay."""
        groups = parameter_groups(self.model, self.settings.weight_decay)
        optimizer = adamw(groups, self.settings.lr)
        self._schedule = linear_schedule(self.settings.steps, self.settings.warmup_ratio)
        schedule = LambdaLR(optimizer, self._schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
