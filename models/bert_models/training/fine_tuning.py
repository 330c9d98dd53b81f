"""Fine-tuning a checkpoint on a labelled file, with Lightning's training loop."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint, save_model
from bert_models.files import replaced_folder, write_json
from bert_models.model import TaskModel
from bert_models.training.class_weights import check_loss, class_weights
from bert_models.training.data import Examples
from bert_models.training.logs import PLOT_NAME, build_loggers, draw
from bert_models.training.loop import fit, resumed_precision
from bert_models.training.module import FineTuning, described_run
from bert_models.training.place import LOGS, REPORT_NAME, STATE, TRAINING_TOOLS, check_output, check_space, prepare
from bert_models.training.placement import ONE_PROCESS, Placement
from bert_models.training.precision import ChosenPrecision, check_precision, choose_precision
from bert_models.training.processes import Processes, joined, silent
from bert_models.training.settings import TrainSettings
from bert_models.training.similarity import similarity_examples
from bert_models.training.task_of_data import task_of_data
from bert_runtime.evaluation import checked_examples
from bert_runtime.machine import available_cores, describe, installed_versions
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import SentenceEmbedding, Task

__all__ = ["REPORT_NAME", "fine_tune"]


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
    placement: Placement = ONE_PROCESS,
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
    target = Path(output)
    with joined(placement) as processes:
        tell = progress if processes.is_first else silent
        torch.set_num_threads(processes.threads(available_cores()))
        processes.from_first(lambda: check_output(target, resume=resume, force=force))
        with processes.together():
            check_precision(settings.precision, sharded=processes.shards)
        source = processes.in_turn(lambda: open_checkpoint(base))
        with processes.together():
            data = _read(source, task, (train, dev), columns, settings, task_settings or {}, tell)
            model = _model(source, data.task, settings)
        precision = processes.from_first(lambda: _begin(target, model, data, settings, processes, tell, resume=resume))
        weights = class_weights(data.task, data.train.targets, settings)
        module = FineTuning(model, data.dev, settings, precision.name, weights, processes)
        started = time.monotonic()
        loggers = build_loggers(target / LOGS)
        best = fit(module, data.train, data.dev, settings, precision, target / STATE, resume=resume, loggers=loggers)
        module.model.task = data.task.tuned(best)
        report = {
            **_results(module, best, precision),
            "seconds": round(time.monotonic() - started, 1),
            "examples": {"train": len(data.train.examples), "dev": len(data.dev.examples)},
            "files": {"train": str(train), "dev": str(dev), "columns": dict(columns or {})},
            **_origin(source),
        }
        tell(f"writing the checkpoint of epoch {best['epoch']}")
        processes.from_first(lambda: _write(target, module, source, report))
        return report


class _Data(NamedTuple):
    """The two files as examples of one task."""

    task: Task
    train: Examples
    dev: Examples


def _read(
    source: Checkpoint,
    task: str,
    files: tuple[str | Path, str | Path],
    columns: Mapping[str, str] | None,
    settings: TrainSettings,
    task_settings: Mapping[str, Any],
    progress: Callable[[str], None],
) -> _Data:
    """The files, checked against each other and tokenized."""
    train_records, dev_records = (read_records(path, columns) for path in files)
    chosen = task_of_data(task, source, train_records, dev_records, task_settings)
    check_loss(chosen, settings)
    progress(f"tokenizing {len(train_records)} training and {len(dev_records)} dev examples")
    train_set = _examples(source, chosen, train_records, settings, training=True)
    return _Data(chosen, train_set, _examples(source, chosen, dev_records, settings, training=False))


def _model(source: Checkpoint, task: Task, settings: TrainSettings) -> TaskModel:
    """The base under the task's head, which is the same in every process where it is new."""
    pl.seed_everything(settings.seed, verbose=False)
    model = load_model(source, task, new_head=True)
    model.encoder.checkpointing = settings.gradient_checkpointing
    return model


def _begin(
    target: Path,
    model: TaskModel,
    data: _Data,
    settings: TrainSettings,
    processes: Processes,
    progress: Callable[[str], None],
    *,
    resume: bool,
) -> ChosenPrecision:
    """Looks whether there is room, settles the precision, and makes the folder ready."""
    check_space(target, model)
    if resume:
        precision = resumed_precision(target / STATE, described_run(data.task, settings, processes.world_size))
    else:
        batch = data.train.collate(range(min(settings.batch_size, len(data.train))))
        precision = choose_precision(settings.precision, model, batch)
        precision.tell(progress)
    prepare(target, resume=resume)
    return precision


def _write(target: Path, module: FineTuning, source: Checkpoint, report: Mapping[str, Any]) -> None:
    """The finished checkpoint with its logs, plot and report, in the place of the run's folder."""
    max_tokens = module.settings.max_tokens or source.max_tokens
    with replaced_folder(target) as folder:
        save_model(module.model, folder, tokenizer_from=source.path, max_tokens=max_tokens)
        if (target / LOGS).is_dir():  # not removed by somebody meanwhile, for which no training is to be lost
            shutil.copytree(target / LOGS, folder / LOGS)
        draw(folder / PLOT_NAME, module.rows, module.model.task.metric)
        write_json(folder / REPORT_NAME, report)


def _results(module: FineTuning, best: dict[str, float], precision: ChosenPrecision) -> dict[str, Any]:
    return {
        "task": module.model.task.to_dict(),
        "metric": module.model.task.metric,
        "best": best,
        "epochs": module.history,
        "stopped_early": len(module.history) < module.settings.epochs,
        "settings": asdict(module.settings),
        "placement": module.processes.described(module.settings.batch_size, module.settings.accumulate),
        "precision": precision.name,
        "seconds_per_step": precision.seconds_per_step,
    }


def _origin(source: Checkpoint) -> dict[str, Any]:
    return {
        "base": source.name,
        "base_revision": source.revision,
        "machine": describe(),
        "versions": installed_versions(TRAINING_TOOLS),
    }


def _examples(
    source: Checkpoint, task: Task, records: Sequence[Record], settings: TrainSettings, *, training: bool
) -> Examples:
    tokenizer = source.text_tokenizer(settings.max_tokens, task.windows)
    if training and isinstance(task, SentenceEmbedding):
        return Examples(task, similarity_examples(task, records), tokenizer)
    return Examples(task, checked_examples(task, tokenizer, records), tokenizer)
