"""Fine-tuning a checkpoint on a labelled file, with Lightning's training loop."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint, save_model
from bert_models.errors import TrainingError
from bert_models.files import replaced_folder, write_json
from bert_models.model import TaskModel
from bert_models.training.data import Examples
from bert_models.training.loop import LAST_NAME, fit, resumed_precision
from bert_models.training.module import FineTuning
from bert_models.training.precision import ChosenPrecision, choose_precision
from bert_models.training.settings import TrainSettings
from bert_models.training.similarity import similarity_examples
from bert_models.training.task_of_data import task_of_data
from bert_runtime.evaluation import checked_examples
from bert_runtime.machine import available_cores, describe
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import SentenceEmbedding, Task

__all__ = ["REPORT_NAME", "fine_tune"]

REPORT_NAME = "training.json"
"""The report that lies beside the weights."""

_STATE = "training"
"""Folder inside the output that holds what a resumed run needs; gone when training has finished."""


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
    `output/training` holds the state after each epoch; `resume` goes on from it. The finished checkpoint loads in
    `transformers`.

    Raises `TrainingError`, `CheckpointError` or `DataError`.
    """
    target = Path(output)
    state = target / _STATE
    _check_output(target, state, resume=resume, force=force)
    source = open_checkpoint(base)
    train_records, dev_records = read_records(train, columns), read_records(dev, columns)
    chosen = task_of_data(task, source, train_records, dev_records, task_settings or {})
    pl.seed_everything(settings.seed, verbose=False)
    model = load_model(source, chosen, new_head=True)
    progress(f"tokenizing {len(train_records)} training and {len(dev_records)} dev examples")
    train_set = _examples(source, chosen, train_records, settings, training=True)
    dev_set = _examples(source, chosen, dev_records, settings, training=False)
    precision = resumed_precision(state) if resume else _precision(settings, model, train_set, progress)
    if not resume:
        shutil.rmtree(state, ignore_errors=True)
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{target}: cannot be written: {error}") from None
    module = FineTuning(model, dev_set, settings, precision.name)
    started = time.monotonic()
    best = fit(module, train_set, dev_set, settings, precision, state, resume=resume)
    model.task = chosen.tuned(best)
    report = {
        "task": model.task.to_dict(),
        "metric": chosen.metric,
        "best": best,
        "epochs": module.history,
        "settings": asdict(settings),
        "precision": precision.name,
        "seconds_per_step": precision.seconds_per_step,
        "seconds": round(time.monotonic() - started, 1),
        "examples": {"train": len(train_set.examples), "dev": len(dev_set.examples)},
        "base": source.name,
        "base_revision": source.revision,
        "machine": describe(),
        "versions": {name: version(name) for name in ("bert-export", "torch", "lightning", "tokenizers")},
    }
    progress(f"writing the checkpoint of epoch {best['epoch']}")
    with replaced_folder(target) as folder:
        save_model(model, folder, tokenizer_from=source.path, max_tokens=settings.max_tokens or source.max_tokens)
        write_json(folder / REPORT_NAME, report)
    return report


def _check_output(target: Path, state: Path, *, resume: bool, force: bool) -> None:
    """Refuses to lose what is at `target`, and to resume what is not there."""
    interrupted = (state / LAST_NAME).is_file() and _is_ours(target)
    if not (resume or interrupted) and target.is_dir() and [each.name for each in target.iterdir()] == [_STATE]:
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


def _is_ours(target: Path) -> bool:
    """Whether a training run wrote this folder: a finished checkpoint with its report, or nothing but a run's state."""
    return (target / REPORT_NAME).is_file() or (
        target.is_dir() and [each.name for each in target.iterdir()] == [_STATE]
    )


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
    if chosen.seconds_per_step:
        measured = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in chosen.seconds_per_step.items())
        progress(f"training in {chosen.name}: one step takes {measured}")
    return chosen
