"""The Lightning module of fine-tuning: loss, optimizer, and the dev metric as the runtime computes it."""

from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bert_models.crf import LinearChainCrf
from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.training.data import Examples, TensorBatch
from bert_models.training.objectives import build_objective
from bert_models.training.settings import TrainSettings
from bert_runtime.tasks import FloatArray

__all__ = ["FineTuning", "parameter_groups"]


_CRF_LR = 1e-2
"""Peak learning rate of a linear chain, which starts at zero and has to grow to the size of logits."""


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters in groups: matrices with weight decay; vectors (biases and LayerNorm) without; a linear chain."""
    chain = [p for module in model.modules() if isinstance(module, LinearChainCrf) for p in module.parameters()]
    rest = [p for p in model.parameters() if not any(p is each for each in chain)]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [*groups, {"params": chain, "weight_decay": 0.0, "lr": _CRF_LR}] if chain else groups


class FineTuning(pl.LightningModule):
    """Trains a `TaskModel` and measures it on the dev set after every epoch."""

    def __init__(self, model: TaskModel, dev: Examples, settings: TrainSettings, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.model = model
        self.objective = build_objective(model.task)
        self.dev = dev
        self.settings = settings
        self.history: list[dict[str, float]] = []
        """One entry per finished epoch: mean training loss and the dev metrics."""
        self._losses: list[float] = []
        self._dev_rows: dict[int, FloatArray] = {}

    def run(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed. `auto` precision stays `auto`, whatever it measures."""
        return {"task": self.model.task.to_dict(), **asdict(self.settings)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history, so that a resumed run reports all of its epochs, and what run it is."""
        checkpoint["history"] = self.history
        checkpoint["run"] = self.run()
        checkpoint["precision"] = self.precision

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The inverse of `on_save_checkpoint`."""
        before, now = checkpoint["run"], self.run()
        differing = [
            f"{key} was {before.get(key)!r}, is now {now[key]!r}" for key in now if before.get(key) != now[key]
        ]
        if differing:
            raise TrainingError(
                f"the interrupted run was another one: {'; '.join(differing)}; resume with the same files and "
                "settings, or start over with --force"
            )
        self.history = checkpoint["history"]

    def on_train_epoch_start(self) -> None:
        """Starts the epoch's mean loss."""
        self._losses.clear()

    def on_train_batch_start(self, batch: TensorBatch, batch_idx: int) -> None:
        """Seeds dropout by the batch's place, so that it is the same in a resumed run, whatever was drawn before."""
        place = np.random.SeedSequence([self.settings.seed, self.current_epoch, batch_idx])
        torch.manual_seed(int(place.generate_state(1)[0]))

    def training_step(self, batch: TensorBatch, index: int) -> Tensor:
        """The loss of one batch."""
        logits = self.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        step_loss = self.objective.loss(self.model, logits, batch.targets)
        value = step_loss.item()
        if not np.isfinite(value):
            rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            raise TrainingError(
                f"the loss became {value} at step {self.global_step} with learning rate {rate:.2e}; "
                "lower --lr, or try --precision fp32"
            )
        self._losses.append(value)
        self.log("loss", value, prog_bar=True, logger=False)
        return step_loss

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
        self.log_dict({f"dev_{name}": value for name, value in metrics.items()}, prog_bar=True, logger=False)
        train_loss = float(np.mean(self._losses))
        self.history.append({"epoch": self.current_epoch + 1, "train_loss": train_loss, **metrics})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with linear warm-up and decay, stepped every batch."""
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, round(steps * self.settings.warmup_ratio))

        def factor(step: int) -> float:
            return step / warmup if step < warmup else max(0.0, (steps - step) / max(1, steps - warmup))

        groups = parameter_groups(self.model, self.settings.weight_decay)
        optimizer: Optimizer = AdamW(groups, lr=self.settings.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }
