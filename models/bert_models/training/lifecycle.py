"""The steps that fine-tuning, distillation and pre-training share: start, prepare or resume, report and write a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bert_models.errors import TrainingError
from bert_models.files import write_json
from bert_models.training.base_module import STATE_VERSION, TrainingModule
from bert_models.training.distributed.placement import Placement
from bert_models.training.distributed.process_group import ProcessGroup, join_processes, no_progress
from bert_models.training.logs import finish_logs
from bert_models.training.precision import ChosenPrecision, check_precision
from bert_models.training.run_dir import (
    LAST_NAME,
    REPORT_NAME,
    STATE_DIR,
    TRAINING_TOOLS,
    check_disk_space,
    check_output,
    keep_unowned_files,
    prepare_run_dir,
)
from bert_models.training.settings import OptimizationSettings
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.machine import available_cores, describe, installed_versions

__all__ = ["describe_environment", "describe_run", "prepare_run", "resumed_precision", "start_run", "write_checkpoint"]


@contextmanager
def start_run(
    output: Path,
    settings: OptimizationSettings,
    placement: Placement,
    progress: Callable[[str], None],
    *,
    resume: bool,
    force: bool,
) -> Iterator[tuple[ProcessGroup, Callable[[str], None]]]:
    """Start the processes of a run, and check that they may train and write; write nothing.

    Yields:
        The process group, and the progress callback of this process: `progress` in rank zero, none elsewhere.

    Raises:
        TrainingError: see `join_processes`, `check_output` and `check_precision`.
    """
    with join_processes(placement) as process_group:
        torch.set_num_threads(process_group.num_threads(available_cores()))
        process_group.from_rank_zero(lambda: check_output(output, resume=resume, force=force))
        with process_group.sync_errors():
            check_precision(settings.precision, sharded=process_group.is_sharded)
        yield process_group, progress if process_group.is_rank_zero else no_progress


def prepare_run(
    output: Path,
    model: nn.Module,
    identity: Mapping[str, Any],
    choose: Callable[[], ChosenPrecision],
    report_progress: Callable[[str], None],
    *,
    resume: bool,
) -> ChosenPrecision:
    """Check the disk, settle the precision, and prepare the folder of the run.

    Args:
        output: folder of the run.
        model: the model to train.
        identity: what must match for the run to be resumed.
        choose: chooses the precision; called only for a new run.
        report_progress: called with a line of text.
        resume: take the precision of the interrupted run in `output` instead.

    Raises:
        TrainingError: there is no space, the folder cannot be written, or the run cannot be resumed.
    """
    check_disk_space(output, model)
    if resume:
        precision = resumed_precision(output / STATE_DIR, identity)
    else:
        precision = choose()
        precision.report(report_progress)
    prepare_run_dir(output, resume=resume)
    return precision


def resumed_precision(state: Path, identity: Mapping[str, Any]) -> ChosenPrecision:
    """Return the precision of the interrupted run in `state`: measured again, another might be faster.

    Args:
        state: folder with the state of the interrupted run.
        identity: what must match: the identity of the run that is to go on.

    Raises:
        TrainingError: the interrupted run has another identity, or its state cannot be read (where Lightning would
            raise whatever unpickling raises).
    """
    path = state / LAST_NAME
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        before, precision, version = saved["run"], saved["precision"], saved.get("version")
    except Exception as error:
        raise TrainingError(f"{path}: cannot be read: {error}; start over with --force") from None
    if version != STATE_VERSION:
        raise TrainingError(
            f"{path}: expected the state of a run of this version, found one of another; resume it with "
            "that, or start over with --force"
        )
    differences = [
        f"{key} was {before.get(key)!r}, is now {identity.get(key)!r}"
        for key in dict.fromkeys((*identity, *before))  # either may have a key alone, such as a schedule of pruning
        if before.get(key) != identity.get(key)
    ]
    if differences:
        raise TrainingError(
            f"the interrupted run was another one: {'; '.join(differences)}; resume with the same files and settings, "
            "or start over with --force"
        )
    return ChosenPrecision(precision, {})


def describe_run(module: TrainingModule, precision: ChosenPrecision, seconds: float) -> dict[str, Any]:
    """Return the entries of a report on how a run was trained; `seconds` is the time of its loop."""
    settings = module.settings
    return {
        "settings": settings.to_dict(),
        "placement": module.process_group.describe(settings.batch_size, settings.gradient_accumulation_steps),
        "precision": precision.name,
        "seconds_per_step": precision.seconds_per_step,
        "seconds": round(seconds, 1),
    }


def describe_environment() -> dict[str, Any]:
    """Return the entries of a report on the machine and the installed versions."""
    return {"machine": describe(), "versions": installed_versions(TRAINING_TOOLS)}


def write_checkpoint(
    output: Path,
    save: Callable[[Path], None],
    module: TrainingModule,
    metrics: Sequence[str],
    report: Mapping[str, Any],
) -> None:
    """Replace the run's folder by the finished checkpoint with logs, plot and report, and files of others in it.

    Args:
        output: folder of the run.
        save: writes the checkpoint into an existing folder.
        module: the trained module, for its logged rows.
        metrics: names of the dev metrics to plot.
        report: contents of `training.json`.
    """
    with atomic_replace_dir(output) as folder:
        save(folder)
        finish_logs(output, folder, module.rows, metrics)
        write_json(folder / REPORT_NAME, report)
        keep_unowned_files(output, folder)
