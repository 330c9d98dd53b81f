"""The training loop: Lightning's Trainer, its checkpoints, and how it stops."""

import copy
import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import Logger

from bert_models.errors import TrainingError
from bert_models.training.data import ExampleDataset, dev_loader, train_loader
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision
from bert_models.training.run_dir import BEST_NAME, LAST_NAME
from bert_models.training.saving import AtomicCheckpointIO, MidEpochCheckpoint
from bert_models.training.settings import TrainSettings
from bert_models.training.silence_lightning import quiet

__all__ = ["ProgressBar", "fit", "interruptible", "quiet", "resumed_precision"]


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
    """Runs the loop, and returns the best epoch's entry of the history; `module.model` then has its weights.

    `state` is a folder for checkpoints; `resume` goes on from the one in it. Of several processes the first alone has
    the weights, in another model than before where they were shared. Raises `TrainingError` when interrupted.
    """
    process_group = module.process_group
    whole = copy.deepcopy(module.model) if process_group.is_sharded and process_group.is_rank_zero else module.model
    with quiet():
        trainer = pl.Trainer(
            max_epochs=settings.epochs,
            **process_group.trainer_options(),
            precision=precision.lightning_name,
            plugins=[AtomicCheckpointIO()],
            gradient_clip_val=settings.max_grad_norm,
            accumulate_grad_batches=settings.gradient_accumulation_steps,
            callbacks=_callbacks(f"dev_{module.model.task.metric}", settings, state),
            logger=list(loggers) or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
        )
        module.train()  # Lightning leaves modes as they are, and a loaded model is in evaluation mode: no dropout
        train = train_loader(
            train_set, settings.batch_size, settings.seed,
            sort_by_length=settings.sort_by_length, process_group=process_group,
        )  # fmt: skip
        if resume:
            train.load_state_dict(_place(state))
        loaders = train, dev_loader(dev_set, process_group)
        with interruptible(state), redirect_stdout(sys.stderr):  # where Lightning's bar draws itself
            trainer.fit(module, *loaders, ckpt_path=state / LAST_NAME if resume else None, weights_only=True)
    if process_group.is_rank_zero:
        weights = torch.load(state / BEST_NAME, map_location="cpu", weights_only=True)["state_dict"]
        whole.cpu()
        own = {key: value for key, value in weights.items() if key.startswith("model.")}  # and no projection
        whole.load_state_dict({key.removeprefix("model."): value for key, value in own.items()})
    module.model = whole.eval()
    return _best_epoch(module)


def _place(state: Path) -> dict[str, int]:
    """Where in its epoch the loader stood; Lightning saves it, and restores it too late for runs of whole epochs."""
    saved = torch.load(state / LAST_NAME, map_location="cpu", weights_only=True, mmap=True)
    (place,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    found: dict[str, int] = place
    return found


def _callbacks(metric: str, settings: TrainSettings, state: Path) -> list[Callback]:
    """What keeps the best epoch, what keeps the last one, what stops early, and the progress bar."""
    keep: dict[str, Any] = {"dirpath": state, "enable_version_counter": False}
    best = _Best(filename=Path(BEST_NAME).stem, monitor=metric, mode="max", save_weights_only=True, **keep)
    last = ModelCheckpoint(filename="last", **keep)
    stopping = [] if settings.patience is None else [_Patience(metric, settings.patience)]
    within = MidEpochCheckpoint(state / LAST_NAME, settings.gradient_accumulation_steps)
    return [best, last, within, *stopping, ProgressBar()]


class _Best(ModelCheckpoint):
    """Keeps the best epoch also where the run's folder was moved before it went on.

    Lightning compares folders by name, and would call the first epoch after that the best.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath)) / Path(path).name) if path else path

        paths = {key: here(state_dict[key]) for key in ("best_model_path", "kth_best_model_path", "last_model_path")}
        models = {here(path): score for path, score in state_dict["best_k_models"].items()}
        super().load_state_dict({**state_dict, **paths, "best_k_models": models, "dirpath": self.dirpath})


def _best_epoch(module: FineTuning) -> dict[str, float]:
    measured = [epoch for epoch in module.history if not math.isnan(epoch[module.model.task.metric])]
    if not measured:
        raise TrainingError(
            f"{module.model.task.metric} is not defined in any epoch: the model gives one answer to all"
        )
    return max(measured, key=lambda epoch: epoch[module.model.task.metric])


@contextmanager
def interruptible(state: Path) -> Iterator[None]:
    """Turns Ctrl-C into a `TrainingError` that says how to go on, from what was saved last.

    Lightning catches the interrupt, ignores further ones while it winds up, and leaves with `sys.exit`.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (state / LAST_NAME).is_file():
            raise TrainingError("interrupted; go on from where it was saved last with --resume") from None
        raise TrainingError("interrupted before anything was saved; start again") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def resumed_precision(state: Path, now: Mapping[str, Any]) -> ChosenPrecision:
    """The precision of the run in `state`: measured again, another might win, and the weights would differ.

    `now` is the `run_identity` that is to go on. Raises `TrainingError` where the one in `state` was another, and for
    a damaged state, where Lightning would end in whatever unpickling raises.
    """
    path = state / LAST_NAME
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        before, precision = saved["run"], saved["precision"]
    except Exception as error:
        raise TrainingError(f"{path}: cannot be read: {error}; start over with --force") from None
    differing = [f"{key} was {before.get(key)!r}, is now {now[key]!r}" for key in now if before.get(key) != now[key]]
    if differing:
        raise TrainingError(
            f"the interrupted run was another one: {'; '.join(differing)}; resume with the same files and settings, or "
            "start over with --force"
        )
    return ChosenPrecision(precision, {})


class _Patience(EarlyStopping):
    """Stops after `patience` epochs without a better metric; one in which it is not defined (NaN) is not better."""

    def __init__(self, metric: str, patience: int) -> None:
        super().__init__(metric, mode="max", patience=patience, check_finite=False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A run that was interrupted between its last epoch and its end has nothing more to train.
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class ProgressBar(TQDMProgressBar):
    """Ends its line when training stops early, so that the error starts on its own."""

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self._train_progress_bar is not None:
            self.train_progress_bar.close()
