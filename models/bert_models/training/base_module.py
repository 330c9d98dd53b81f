"""The Lightning module that fine-tuning and pre-training derive from: logging, saved state, and AdamW."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from bert_models.errors import UntrainableError
from bert_models.training.distributed.process_group import ProcessGroup
from bert_models.training.distributed.sharding import shard_module
from bert_models.training.optimizer import adamw, linear_schedule, number_by_module
from bert_models.training.settings import OptimizationSettings

__all__ = ["STATE_VERSION", "TrainingModule"]

STATE_VERSION = 1
"""Version of the states that runs save; a run goes on with those of its own alone."""


class TrainingModule(pl.LightningModule):
    """Lightning module that keeps its logs and history, because a resumed run writes them anew."""

    settings: OptimizationSettings

    def __init__(
        self, settings: OptimizationSettings, precision: str, identity: Mapping[str, Any], process_group: ProcessGroup
    ) -> None:
        """Start without history.

        Args:
            settings: the settings of the run.
            precision: name of the precision, which a resumed run keeps.
            identity: what must match for the run to be resumed.
            process_group: the processes that train together.
        """
        super().__init__()
        self.settings, self.precision, self.identity = settings, precision, dict(identity)
        self.process_group = process_group
        self.history: list[dict[str, float]] = []
        """One entry per evaluation: when it was, the mean training loss since the one before, and the dev metrics."""
        self.rows: list[dict[str, float]] = []
        """Logged rows, each with its `step`: `loss` and `lr` of an optimizer step, or `dev_…` of an evaluation."""

    def configure_model(self) -> None:
        """Shard the parameters over the processes if that is the strategy."""
        if self.process_group.is_sharded:
            shard_module(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save logs and history, and what identifies the run; number the optimizer's parameters as FSDP does."""
        checkpoint |= {"rows": self.rows, "history": self.history, "precision": self.precision, "run": self.identity}
        checkpoint["version"] = STATE_VERSION
        if "optimizer_states" in checkpoint and not self.process_group.is_sharded:
            pairs = zip(checkpoint["optimizer_states"], self.trainer.optimizers, strict=True)
            checkpoint["optimizer_states"] = [number_by_module(state, optimizer, self) for state, optimizer in pairs]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore logs and history; log the rows again, also if no step is left."""
        self.history, self.rows = checkpoint["history"], checkpoint["rows"]
        for logger in self.loggers:
            for row in self.rows:
                logger.log_metrics({name: value for name, value in row.items() if name != "step"}, int(row["step"]))

    def log_row(self, values: dict[str, float]) -> None:
        """Log metrics of the current step."""
        self.rows.append({"step": self.global_step, **values})
        for logger in self.loggers:
            logger.log_metrics(values, self.global_step)

    def log_dev_metrics(self, metrics: Mapping[str, float]) -> None:
        """Show and log the metrics of an evaluation as `dev_…`, and flush the logs, so that a kill loses no row."""
        dev = {f"dev_{name}": value for name, value in metrics.items()}
        self.log_dict(dev, prog_bar=True, logger=False)
        self.log_row(dev)
        for logger in self.loggers:
            logger.save()

    def show_loss(self, loss: Tensor) -> float:
        """Show the loss [] in the progress bar and return it.

        It must be the loss over all processes, so that all of them fail or none.

        Raises:
            UntrainableError: the loss is not finite; the message names the step and the learning rate.
        """
        value = loss.item()
        if not np.isfinite(value):
            lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr] # there is one optimizer
            raise UntrainableError(
                f"the loss became {value} at step {self.global_step} with learning rate {lr:.2e}; "
                "lower --lr, or try --precision fp32"
            )
        self.log("loss", value, prog_bar=True, logger=False)
        return value

    def build_optimizer(self, groups: list[dict[str, Any]], steps: int) -> OptimizerLRSchedulerConfig:
        """Return AdamW with linear warm-up and decay over `steps` optimizer steps."""
        optimizer = adamw(groups, self.settings.lr)
        self.lr_factor = linear_schedule(steps, self.settings.warmup_ratio)
        schedule = LambdaLR(optimizer, self.lr_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
