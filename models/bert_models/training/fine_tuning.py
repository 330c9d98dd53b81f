"""Fine-tuning a checkpoint on a labelled file, with Lightning's training loop."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_models.checkpoint import load_model, open_checkpoint
from bert_models.training.class_weights import check_loss_settings
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_models.training.infer_task import infer_task
from bert_models.training.run import DataFiles, TrainingSetup, run_training
from bert_models.training.settings import TrainSettings
from bert_runtime.records import Record

__all__ = ["fine_tune"]


def fine_tune(
    task: str,
    base: str | Path,
    train: str | Path,
    dev: str | Path,
    output: str | Path,
    settings: TrainSettings,
    *,
    task_settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Fine-tunes `base` and writes the checkpoint of the best epoch to `output`; returns the report.

    `base` is a folder or a hub id, see `bert_models.hub`; `task_settings` are fields of the task's class in
    `bert_runtime.tasks`, such as `problem_type` or `crf`; `columns` maps field names to the files' own, see
    `read_records`. Data, labels and the base are read and checked before anything is written. While it runs,
    `output/training` holds the state after each epoch and `output/logs` the numbers of each step; `resume` goes on from
    the state. With `force`, logs that an earlier run left there go when training starts, its weights when it has
    finished. The finished checkpoint loads in `transformers`.

    Where `placement` has several processes they all return the report; the first alone reports progress and writes.

    Raises `TrainingError`, `CheckpointError` or `DataError`.
    """

    def build_setup(train_records: Sequence[Record], dev_records: Sequence[Record]) -> TrainingSetup:
        source = open_checkpoint(base)
        chosen = infer_task(task, source, train_records, dev_records, task_settings or {})
        check_loss_settings(chosen, settings)
        return TrainingSetup(source, chosen, build=lambda: load_model(source, chosen, new_head=True))

    return run_training(
        build_setup, [base], DataFiles(train, dev, columns or {}), output, settings,
        placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip
