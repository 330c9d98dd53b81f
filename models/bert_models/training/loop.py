"""The training loop: Lightning's Trainer, its checkpoints, and how it stops."""

import copy
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from torch import nn

from bert_models.errors import TrainingInterruptedError, UntrainableError
from bert_models.training.base_module import TrainingModule
from bert_models.training.data import ExampleDataset, dev_loader, train_loader
from bert_models.training.distributed.process_group import ProcessGroup
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision
from bert_models.training.progress_bar import ProgressBar
from bert_models.training.run_dir import BEST_NAME, LAST_NAME
from bert_models.training.saving import AtomicCheckpointIO, MidEpochCheckpoint
from bert_models.training.settings import TrainSettings
from bert_models.training.silence_lightning import silence_lightning

__all__ = ["build_trainer", "fit", "run_loop", "unsharded_model"]

Model = TypeVar("Model", bound=nn.Module)


def fit(
    module: FineTuning,
    train_set: ExampleDataset,
    dev_set: ExampleDataset,
    settings: TrainSettings,
    precision: ChosenPrecision,
    state: Path,
    *,
    resume: bool,
    loggers: Sequence[Logger] = (),
) -> dict[str, float]:
    """Train; afterwards `module.model` has the weights of the best epoch.

    Rank zero alone has the weights; if parameters were sharded, in another model object than before.

    Args:
        module: the module to train.
        train_set: the training set.
        dev_set: the dev set.
        settings: the settings of the run.
        precision: the precision of the run.
        state: existing folder for the state of the run.
        resume: go on from the state in that folder.
        loggers: Lightning's loggers.

    Returns:
        The best epoch's entry of `module.history`.

    Raises:
        TrainingInterruptedError: the run was interrupted.
        UntrainableError: the loss is not finite, or the dev metric is not defined in any epoch.
    """
    process_group = module.process_group
    final_model = unsharded_model(module.model, process_group)
    with silence_lightning():
        trainer = build_trainer(
            module, precision, _callbacks(f"dev_{module.metric}", settings, state), loggers,
            max_epochs=settings.epochs,
        )  # fmt: skip
        train = train_loader(
            train_set, settings.batch_size, settings.seed,
            sort_by_length=settings.sort_by_length, process_group=process_group,
        )  # fmt: skip
        if resume:
            train.load_state_dict(_loader_position(state))
        run_loop(trainer, module, state, train, dev_loader(dev_set, process_group), resume=resume)
    if process_group.is_rank_zero:
        weights = torch.load(state / BEST_NAME, map_location="cpu", weights_only=True)["state_dict"]
        final_model.cpu()
        prefix = "model."  # leaves out what is trained besides the model, such as a distillation's projection
        model_weights = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        final_model.load_state_dict(model_weights)
    module.model = final_model.eval()
    return _best_epoch(module)


def unsharded_model(model: Model, process_group: ProcessGroup) -> Model:
    """Return the model that gets the final weights: a copy in rank zero if training will shard `model`."""
    return copy.deepcopy(model) if process_group.is_sharded and process_group.is_rank_zero else model


def build_trainer(
    module: TrainingModule,
    precision: ChosenPrecision,
    callbacks: list[Callback],
    loggers: Sequence[Logger],
    **options: Any,
) -> pl.Trainer:
    """Return Lightning's Trainer with what all runs share; `options` are further arguments of it."""
    return pl.Trainer(
        **module.process_group.trainer_options(),
        **options,
        precision=precision.lightning_name,
        plugins=[AtomicCheckpointIO()],
        gradient_clip_val=module.settings.max_grad_norm,
        accumulate_grad_batches=module.settings.gradient_accumulation_steps,
        callbacks=callbacks,
        logger=list(loggers) or False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )


def run_loop(
    trainer: pl.Trainer, module: TrainingModule, state: Path, train: Any = None, dev: Any = None, *, resume: bool
) -> None:
    """Run the trainer, from the last save in `state` if asked to.

    `train` and `dev` are data loaders; by default the module provides them.

    Raises:
        TrainingInterruptedError: the run was interrupted.
    """
    module.train()  # Lightning keeps the mode, and a loaded model is in evaluation mode, without dropout
    with _interruptible(state), redirect_stdout(sys.stderr):  # where Lightning's progress bar belongs
        trainer.fit(module, train, dev, ckpt_path=state / LAST_NAME if resume else None, weights_only=True)


def _loader_position(state: Path) -> dict[str, int]:
    """Return the saved state of the training loader; Lightning restores it too late for runs of whole epochs."""
    saved = torch.load(state / LAST_NAME, map_location="cpu", weights_only=True, mmap=True)
    (loader_state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    position: dict[str, int] = loader_state
    return position


def _callbacks(metric: str, settings: TrainSettings, state: Path) -> list[Callback]:
    """Return the callbacks that save the best and the last epoch, save within epochs, stop early, and show progress."""
    options: dict[str, Any] = {"dirpath": state, "enable_version_counter": False}
    best = _BestCheckpoint(filename=Path(BEST_NAME).stem, monitor=metric, mode="max", save_weights_only=True, **options)
    last = ModelCheckpoint(filename=Path(LAST_NAME).stem, **options)
    within_epochs = MidEpochCheckpoint(state / LAST_NAME, settings.gradient_accumulation_steps)
    early_stopping = [] if settings.patience is None else [_EarlyStopping(metric, settings.patience)]
    return [best, last, within_epochs, *early_stopping, ProgressBar()]


class _BestCheckpoint(ModelCheckpoint):
    """Keep the best epoch, also if the run's folder was moved before the run was resumed.

    Lightning compares folders by name, and would take the first epoch after a move for the best.
    """

    @property
    def state_key(self) -> str:
        """The key in saved states, which keeps the class's first name."""
        return super().state_key.replace(type(self).__qualname__, "_Best", 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def relocate(path: str) -> str:
            return str(Path(str(self.dirpath)) / Path(path).name) if path else path

        keys = ("best_model_path", "kth_best_model_path", "last_model_path")
        paths = {key: relocate(state_dict[key]) for key in keys}
        scores = {relocate(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict({**state_dict, **paths, "best_k_models": scores, "dirpath": self.dirpath})


def _best_epoch(module: FineTuning) -> dict[str, float]:
    metric = module.metric
    defined = [epoch for epoch in module.history if not math.isnan(epoch[metric])]
    if not defined:
        raise UntrainableError(f"{metric} is not defined in any epoch: the model predicts the same for every example")
    return max(defined, key=lambda epoch: np.float32(epoch[metric]))  # as Lightning, which keeps the best, compares


@contextmanager
def _interruptible(state: Path) -> Iterator[None]:
    """Turn Ctrl-C into a `TrainingInterruptedError` that says how to resume.

    Lightning catches the interrupt, ignores further ones while it finishes, and exits with `sys.exit`.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (state / LAST_NAME).is_file():
            raise TrainingInterruptedError("interrupted; go on from the last save with --resume") from None
        raise TrainingInterruptedError("interrupted before anything was saved; start again") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


class _EarlyStopping(EarlyStopping):
    """Stop after `patience` epochs without a better metric; an undefined metric (NaN) is not better."""

    @property
    def state_key(self) -> str:
        """The key in saved states, which keeps the class's first name."""
        return super().state_key.replace(type(self).__qualname__, "_Patience", 1)

    def __init__(self, metric: str, patience: int) -> None:
        super().__init__(metric, mode="max", patience=patience, check_finite=False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A run that was interrupted between its last epoch and its end has nothing left to train.
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience
