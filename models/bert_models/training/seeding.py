"""What a step of fine-tuning and one of pre-training have in common."""

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from bert_models.errors import TrainingError

__all__ = ["finite_value", "seed_from_indices"]


def seed_from_indices(*place: int) -> None:
    """Seeds dropout and sampling by a batch's place, so that a resumed run draws the same as a whole one."""
    torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))


def finite_value(module: pl.LightningModule, loss: Tensor) -> float:
    """The loss as a number, shown in the progress bar; raises `TrainingError` naming the step where it is none.

    It must be that of all processes, so that all go on or none does.
    """
    value = loss.item()
    if not np.isfinite(value):
        rate = module.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr] # there is one optimizer
        raise TrainingError(
            f"the loss became {value} at step {module.global_step} with learning rate {rate:.2e}; "
            "lower --lr, or try --precision fp32"
        )
    module.log("loss", value, prog_bar=True, logger=False)
    return value
