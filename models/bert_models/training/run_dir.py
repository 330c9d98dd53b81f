"""The output directory of a run: what it holds during training, what may be replaced, and whether it fits the disk."""

import os
import shutil
from pathlib import Path

from torch import nn

from bert_models.errors import TrainingError
from bert_models.tokenizer_files import TOKENIZER_FILES
from bert_runtime.bundle.atomic_folders import check_replaceable, is_free, unowned_files

__all__ = [
    "BEST_NAME",
    "GENERATOR_FOLDER",
    "LAST_NAME",
    "LOGS_DIR",
    "REPORT_NAME",
    "STATE_DIR",
    "TRAINING_TOOLS",
    "check_disk_space",
    "check_output",
    "keep_unowned_files",
    "prepare_run_dir",
]

REPORT_NAME = "training.json"
"""The report, next to the weights."""

STATE_DIR = "training"
"""Folder in the output with the state that a resumed run needs; removed when training has finished."""

BEST_NAME = "best.ckpt"
"""File in the state folder with the weights of the epoch that has the best dev metric."""

LAST_NAME = "last.ckpt"
"""File in the state folder with the last saved state of the run."""

LOGS_DIR = "logs"
"""Folder in the output with the metrics of every step, during training and afterwards."""


GENERATOR_FOLDER = "generator"
"""Folder in a discriminator's checkpoint with the checkpoint of its generator (ELECTRA)."""

_CHECKPOINT_FILES = (
    REPORT_NAME, "training.png", STATE_DIR, LOGS_DIR, "config.json", "model*.safetensors*", *TOKENIZER_FILES,
    GENERATOR_FOLDER, "modules.json", "sentence_bert_config.json", "[0-9]_*",
    "config_sentence_transformers.json",
)  # fmt: skip
"""Name patterns of the files of a trained checkpoint, which a new checkpoint replaces."""

TRAINING_TOOLS = ("bert-export", "torch", "lightning", "tokenizers")
"""Distributions whose versions the report holds."""


def check_output(output: Path, *, resume: bool, force: bool) -> None:
    """Check that a run may write to `output`; write nothing.

    Raises:
        TrainingError: `output` holds something that would be lost, or nothing that could be resumed.
        BertError: it cannot be replaced by the checkpoint at the end, see `check_replaceable`.
    """
    check_replaceable(output)
    state = output / STATE_DIR
    interrupted = (state / LAST_NAME).is_file()
    if not (resume or interrupted) and _is_unfinished(output):
        return  # a run that stopped in its first epoch
    if resume and not interrupted:
        raise TrainingError(f"{output}: nothing to resume: expected {state / LAST_NAME}; train without --resume")
    if is_free(output):
        return
    if interrupted and not (resume or force):
        raise TrainingError(
            f"{output}: an interrupted training is there; go on with --resume or start over with --force"
        )
    if not (interrupted or _is_run_dir(output)):
        raise TrainingError(f"{output}: exists and was not written by a training run; choose another output folder")
    if not (resume or force):
        raise TrainingError(f"{output}: a trained checkpoint is already there; replace it with --force")
    if not resume and (unowned := unowned_files(output, _CHECKPOINT_FILES)):  # a run keeps them, see keep_unowned_files
        raise TrainingError(
            f"{output}: besides what a training run writes there is also {', '.join(unowned)}, which would be lost; "
            "move that elsewhere first"
        )


def keep_unowned_files(output: Path, folder: Path) -> None:
    """Give `folder`, the finished checkpoint, what somebody else has put into `output` while the run trained.

    Files are links to the same data where the file system has them, and stay in `output` until it is replaced.

    Raises:
        TrainingError: a file cannot be read.
    """
    if not output.is_dir():
        return
    for name in unowned_files(output, _CHECKPOINT_FILES):
        source, target = output / name, folder / name
        try:
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
            else:
                _link_or_copy(source, target)
        except OSError as error:  # of `copytree`, shutil.Error is one
            if os.path.lexists(source):  # and has not vanished meanwhile, as an editor's files do
                raise TrainingError(
                    f"{source}: is in the folder of the run, and cannot be kept: {error}; move it elsewhere, and go on "
                    "with --resume"
                ) from None


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _is_run_dir(output: Path) -> bool:
    """Return whether a training run wrote this folder: it has a report, or nothing but a run's state and logs."""
    return (output / REPORT_NAME).is_file() or _is_unfinished(output)


def _is_unfinished(output: Path) -> bool:
    """Return whether there is nothing but a run's state and logs; logs alone may come from another program."""
    return output.is_dir() and {STATE_DIR} <= {path.name for path in output.iterdir()} <= {STATE_DIR, LOGS_DIR}


def check_disk_space(output: Path, model: nn.Module) -> None:
    """Check that the disk has room for a run that trains `model`; write nothing.

    While its state is saved, a run has up to seven float32 values on disk per parameter: the weights of the best epoch
    (pre-training keeps none), and twice the last state, the old one until the new one is whole: weights and AdamW's two
    moments. The state of an interrupted run is a part of that.

    Raises:
        TrainingError: there is less space.
    """
    needed = 7 * 4 * sum(parameter.numel() for parameter in model.parameters())
    existing = next(folder for folder in (output.resolve(), *output.resolve().parents) if folder.is_dir())
    reusable = sum(file.stat().st_size for file in (output / STATE_DIR).glob("*") if file.is_file())
    free = shutil.disk_usage(existing).free + reusable
    if free < needed:
        raise TrainingError(
            f"{output}: training writes {needed / 1e6:,.1f} MB (the best weights, and twice the last ones with the "
            f"optimizer's state), and the disk has {free / 1e6:,.1f} MB free"
        )


def prepare_run_dir(output: Path, *, resume: bool) -> None:
    """Create the state folder, remove old logs, and test that files can be written.

    A resumed run writes its logs anew, too, from the rows that its state holds.

    Raises:
        TrainingError: the folder cannot be written.
    """
    state = output / STATE_DIR
    if not resume:
        shutil.rmtree(state, ignore_errors=True)
    shutil.rmtree(output / LOGS_DIR, ignore_errors=True)
    probe = state / "probe"
    try:
        state.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise TrainingError(f"{output}: cannot be written: {error}") from None
