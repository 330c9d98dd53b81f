"""The loop of pre-training: Lightning's Trainer for a number of steps, with evaluations in between."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from bert_models.pretraining.module import Pretraining
from bert_models.pretraining.settings import PretrainSettings
from bert_models.training.distributed.sharding import full_state_dict
from bert_models.training.loop import build_trainer, run_loop, unsharded_model
from bert_models.training.precision import ChosenPrecision
from bert_models.training.progress_bar import ProgressBar
from bert_models.training.run_dir import LAST_NAME
from bert_models.training.silence_lightning import silence_lightning

__all__ = ["fit"]


def fit(
    module: Pretraining,
    settings: PretrainSettings,
    precision: ChosenPrecision,
    state: Path,
    *,
    resume: bool,
    loggers: Sequence[Logger] = (),
) -> None:
    """Train; afterwards `module.model` has the weights of the last step.

    If parameters were sharded, rank zero alone has the weights, in another model object than before.

    Args:
        module: the module to train.
        settings: the settings of the run.
        precision: the precision of the run.
        state: existing folder for the state of the run.
        resume: go on from the state in that folder.
        loggers: Lightning's loggers.

    Raises:
        TrainingError: the run was interrupted.
    """
    process_group = module.process_group
    final_model = unsharded_model(module.model, process_group)
    last = ModelCheckpoint(
        dirpath=state, filename=Path(LAST_NAME).stem, enable_version_counter=False,
        save_on_train_epoch_end=False,  # but after each evaluation
    )  # fmt: skip
    with silence_lightning():
        trainer = build_trainer(
            module, precision, [last, ProgressBar()], loggers,
            max_steps=settings.steps,
            max_epochs=-1,
            val_check_interval=min(settings.eval_every, settings.steps) * settings.gradient_accumulation_steps,
            check_val_every_n_epoch=None,
            reload_dataloaders_every_n_epochs=1,
        )  # fmt: skip
        run_loop(trainer, module, state, resume=resume)
        if not module.history or module.history[-1]["step"] != settings.steps:
            with redirect_stdout(sys.stderr):
                trainer.validate(module, verbose=False)
    if process_group.is_sharded:
        weights = full_state_dict(module)
        if process_group.is_rank_zero:
            final_model.load_state_dict({key.removeprefix("model."): value for key, value in weights.items()})
    elif process_group.is_rank_zero:
        final_model.cpu()
    module.model = final_model.eval()
