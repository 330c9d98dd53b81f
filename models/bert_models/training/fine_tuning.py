"""Fine-tune a checkpoint on a labelled file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.first_token import check_prunable
from bert_models.head_tensors import has_other_labels
from bert_models.pruned_checkpoint import pruning_record, with_token_pruning
from bert_models.task_settings import default_labels, read_labels
from bert_models.training.class_weights import check_loss_settings
from bert_models.training.data_files import DataFiles
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_models.training.distributed.process_group import no_progress
from bert_models.training.infer_task import infer_task, label_reader
from bert_models.training.run import TrainingSetup, run_training
from bert_models.training.settings import TrainSettings
from bert_runtime.records import Record
from bert_runtime.tasks import Task

__all__ = ["fine_tune"]


def fine_tune(
    task: str,
    base: str | Path,
    train: str | Path,
    dev: str | Path | None,
    output: str | Path,
    settings: TrainSettings,
    *,
    task_settings: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    prune_tokens: str | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Fine-tune `base` and write the checkpoint of the epoch with the best dev metric.

    Data, labels and the base are read and checked before anything is written. During training, `output/training` holds
    the state of the run, which is saved after every epoch, about every minute and on SIGINT or SIGTERM, and
    `output/logs` holds the metrics of every step. The finished checkpoint loads in `transformers`.

    With several processes, all of them return the report; rank zero alone reports progress and writes.

    Args:
        task: a key of `bert_runtime.tasks.TASKS`, such as `text-classification`.
        base: folder or hub id of the checkpoint to start from, see `bert_models.hub`.
        train: labelled training file, see `bert_runtime.records.read_records`.
        dev: labelled file that decides which epoch is best; `None` holds rows of the training file out for it, see
            `settings.dev_fraction` and `split_rows`.
        output: folder of the checkpoint.
        settings: optimizer, epochs, batches and precision.
        task_settings: fields of the task's class in `bert_runtime.tasks`, such as `problem_type` or `crf`.
        columns: column names of the files by field name, see `read_records`.
        prune_tokens: schedule of token pruning to train with, see `with_token_pruning`; the checkpoint keeps it.
        placement: number of processes, and how they share the model.
        resume: go on with the interrupted run in `output`.
        force: replace what an earlier run wrote: its logs when training starts, its checkpoint when it has finished.
        progress: called with a line of text at every stage.

    Returns:
        The report, which is also written to `output/training.json`: task, dev metrics of all epochs, settings, files,
        machine and versions.

    Raises:
        TrainingError: the settings, the output or the machine do not allow the run, or it was interrupted.
        CheckpointError: the base cannot be used for the task.
        ConfigError: tokens are pruned that the task reads, or the schedule does not fit the model.
        DataError: a file cannot be read, or a row cannot be used for the task.
    """

    def build_setup(train_records: Sequence[Record], dev_records: Sequence[Record]) -> TrainingSetup:
        source = with_token_pruning(open_checkpoint(base), prune_tokens)
        notes: list[str] = []
        inferred = infer_task(
            task, source, train_records, dev_records, task_settings or {},
            unknown_labels=settings.unknown_labels, progress=notes.append,
        )  # fmt: skip
        check_loss_settings(inferred, settings)
        check_prunable(source.config, inferred)
        return TrainingSetup(
            source,
            inferred,
            build=lambda: load_model(source, inferred, new_head=True),
            described=pruning_record(source),
            identity=pruning_record(source),
            notes=[*notes, *_describe_new_output(source, inferred)],
        )

    problem_type = (task_settings or {}).get("problem_type")
    files = DataFiles(train, dev, columns or {}, lambda: label_reader(task, problem_type))
    return run_training(
        build_setup, [base], files, output, settings,
        placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip


def _describe_new_output(source: Checkpoint, task: Task) -> list[str]:
    """Return a line of text if the base's head has an output layer that is not used, because its labels are others."""
    if not source.was_trained_for(task.name) or not has_other_labels(source, task):
        return []
    labels = read_labels({**default_labels(source.config_json), **source.config_json}) or []
    shown = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
    return [f"starting with a new output layer: the base's labels are others than those of the rows ({shown})"]
