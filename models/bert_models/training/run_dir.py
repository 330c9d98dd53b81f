"""The folder of a run: what may be replaced, what lies there while it trains, and whether there is room."""

import shutil
from pathlib import Path

from torch import nn

from bert_models.errors import TrainingError
from bert_models.files import unowned_files
from bert_models.tokenizer_files import TOKENIZER_FILES

__all__ = [
    "BEST_NAME",
    "GENERATOR_FOLDER",
    "LAST_NAME",
    "LOGS_DIR",
    "REPORT_NAME",
    "STATE_DIR",
    "TRAINING_TOOLS",
    "check_output",
    "check_space",
    "prepare",
]

REPORT_NAME = "training.json"
"""The report that lies beside the weights."""

STATE_DIR = "training"
"""Folder inside the output that holds what a resumed run needs; gone when training has finished."""

BEST_NAME = "best.ckpt"
"""Weights of the epoch with the best dev metric."""

LAST_NAME = "last.ckpt"
"""File in the state folder with all that a resumed run goes on from."""

LOGS_DIR = "logs"
"""Folder inside the output with the numbers of every step, there while the run trains and afterwards."""


GENERATOR_FOLDER = "generator"
"""Where the generator's checkpoint lies in that of its discriminator."""

_CHECKPOINT_FILES = (
    REPORT_NAME, "training.png", STATE_DIR, LOGS_DIR, "config.json", "model*.safetensors*", *TOKENIZER_FILES,
    GENERATOR_FOLDER, "modules.json", "sentence_bert_config.json", "[0-9]_*",
)  # fmt: skip
"""What a trained checkpoint consists of, and so is replaced with it."""

TRAINING_TOOLS = ("bert-export", "torch", "lightning", "tokenizers")
"""Distributions whose versions the report names."""


def check_output(target: Path, *, resume: bool, force: bool) -> None:
    """Refuses to lose what is at `target`, and to resume what is not there."""
    state = target / STATE_DIR
    interrupted = (state / LAST_NAME).is_file() and _is_ours(target)
    if not (resume or interrupted) and _is_unfinished(target):
        return  # a run that stopped in its first epoch
    if resume and not interrupted:
        raise TrainingError(f"{target}: nothing to resume: expected {state / LAST_NAME}; train without --resume")
    if resume or not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if interrupted and not force:
        raise TrainingError(
            f"{target}: an interrupted training is there; go on with --resume or start over with --force"
        )
    if not _is_ours(target):
        raise TrainingError(f"{target}: exists and was not written by a training run; choose another place")
    if not force:
        raise TrainingError(f"{target}: a trained checkpoint is already there; replace it with --force")
    if others := unowned_files(target, _CHECKPOINT_FILES):
        raise TrainingError(
            f"{target}: beside the checkpoint there is also {', '.join(others)}, which would be lost; move that "
            "elsewhere first"
        )


def _is_ours(target: Path) -> bool:
    """Whether a training run wrote this folder: a finished checkpoint with its report, or nothing but a run's state."""
    return (target / REPORT_NAME).is_file() or _is_unfinished(target)


def _is_unfinished(target: Path) -> bool:
    """Whether nothing is there but a run's state and its logs; logs alone may be anybody's."""
    return target.is_dir() and {STATE_DIR} <= {each.name for each in target.iterdir()} <= {STATE_DIR, LOGS_DIR}


def check_space(target: Path, model: nn.Module) -> None:
    """Raises `TrainingError` where the disk has no room for a run that trains `model`; writes nothing.

    At the end there are three copies of the weights (the best epoch's, the last epoch's, the finished checkpoint's) and
    two numbers of the optimizer for every weight, all float32. The state of an interrupted run is overwritten, and so
    counts as free.
    """
    needed = 5 * 4 * sum(parameter.numel() for parameter in model.parameters())
    place = next(each for each in (target.resolve(), *target.resolve().parents) if each.is_dir())
    own = sum(file.stat().st_size for file in (target / STATE_DIR).glob("*") if file.is_file())
    found = shutil.disk_usage(place).free + own
    if found < needed:
        raise TrainingError(
            f"{target}: training writes {needed / 1e6:,.1f} MB (three copies of the weights and the optimizer's "
            f"state), and the disk has {found / 1e6:,.1f} MB free"
        )


def prepare(target: Path, *, resume: bool) -> None:
    """Makes room for a run's state and logs, and tries whether files can be written there.

    Logs are written anew also by a resumed run, which has their rows in its state. Raises `TrainingError`.
    """
    state = target / STATE_DIR
    if not resume:
        shutil.rmtree(state, ignore_errors=True)
    shutil.rmtree(target / LOGS_DIR, ignore_errors=True)
    probe = state / "probe"
    try:
        state.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise TrainingError(f"{target}: cannot be written: {error}") from None
