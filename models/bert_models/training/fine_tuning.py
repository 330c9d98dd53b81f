"""Fine-tuning a checkpoint on a labelled file, with Lightning's training loop."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint, save_model
from bert_models.files import replaced_folder, write_json
from bert_models.model import TaskModel
from bert_models.training.class_weights import check_loss, class_weights
from bert_models.training.data import Examples
from bert_models.training.logs import build_loggers, finish_logs
from bert_models.training.loop import fit, resumed_precision
from bert_models.training.module import FineTuning, described_run
from bert_models.training.place import LOGS, REPORT_NAME, STATE, TRAINING_TOOLS, check_output, check_space, prepare
from bert_models.training.precision import ChosenPrecision, check_precision, choose_precision
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

    Raises `TrainingError`, `CheckpointError` or `DataError`.
    """
    target = Path(output)
    check_output(target, resume=resume, force=force)
    check_precision(settings.precision)
    source = open_checkpoint(base)
    train_records, dev_records = read_records(train, columns), read_records(dev, columns)
    chosen = task_of_data(task, source, train_records, dev_records, task_settings or {})
    check_loss(chosen, settings)
    pl.seed_everything(settings.seed, verbose=False)
    model = load_model(source, chosen, new_head=True)
    model.encoder.checkpointing = settings.gradient_checkpointing
    check_space(target, model)
    progress(f"tokenizing {len(train_records)} training and {len(dev_records)} dev examples")
    train_set = _examples(source, chosen, train_records, settings, training=True)
    dev_set = _examples(source, chosen, dev_records, settings, training=False)
    state = target / STATE
    precision = (
        resumed_precision(state, described_run(chosen, settings))
        if resume
        else _precision(settings, model, train_set, progress)
    )
    prepare(target, resume=resume)
    module = FineTuning(model, dev_set, settings, precision.name, class_weights(chosen, train_set.targets, settings))
    started = time.monotonic()
    loggers = build_loggers(target / LOGS)
    best = fit(module, train_set, dev_set, settings, precision, state, resume=resume, loggers=loggers)
    model.task = chosen.tuned(best)
    report = {
        **_results(module, best, precision),
        "seconds": round(time.monotonic() - started, 1),
        "examples": {"train": len(train_set.examples), "dev": len(dev_set.examples)},
        "files": {"train": str(train), "dev": str(dev), "columns": dict(columns or {})},
        **_origin(source),
    }
    progress(f"writing the checkpoint of epoch {best['epoch']}")
    with replaced_folder(target) as folder:
        save_model(model, folder, tokenizer_from=source.path, max_tokens=settings.max_tokens or source.max_tokens)
        finish_logs(target, folder, module.rows, [chosen.metric])
        write_json(folder / REPORT_NAME, report)
    return report


def _results(module: FineTuning, best: dict[str, float], precision: ChosenPrecision) -> dict[str, Any]:
    return {
        "task": module.model.task.to_dict(),
        "metric": module.model.task.metric,
        "best": best,
        "epochs": module.history,
        "stopped_early": len(module.history) < module.settings.epochs,
        "settings": asdict(module.settings),
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


def _precision(
    settings: TrainSettings, model: TaskModel, train_set: Examples, progress: Callable[[str], None]
) -> ChosenPrecision:
    torch.set_num_threads(available_cores())
    batch = train_set.collate(range(min(settings.batch_size, len(train_set))))
    chosen = choose_precision(settings.precision, model, batch)
    chosen.tell(progress)
    return chosen
