"""A training run from files to checkpoint, whatever the learner learns from."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch

from bert_models.checkpoint import Checkpoint, open_checkpoint
from bert_models.files import write_json
from bert_models.model import TaskModel
from bert_models.saving import save_model
from bert_models.training.class_weights import class_weights
from bert_models.training.data import ExampleDataset
from bert_models.training.distributed.placement import Placement
from bert_models.training.distributed.process_group import ProcessGroup, join_processes, no_progress
from bert_models.training.infer_task import labels_without_example
from bert_models.training.logs import build_loggers, finish_logs
from bert_models.training.loop import fit, resumed_precision
from bert_models.training.module import FineTuning, run_identity
from bert_models.training.objectives import Objective
from bert_models.training.precision import ChosenPrecision, check_precision, choose_precision
from bert_models.training.run_dir import (
    LOGS_DIR,
    REPORT_NAME,
    STATE_DIR,
    TRAINING_TOOLS,
    check_output,
    check_space,
    prepare,
)
from bert_models.training.settings import TrainSettings
from bert_models.training.similarity import similarity_examples
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.evaluation import build_examples
from bert_runtime.machine import available_cores, describe, installed_versions
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, SentenceEmbedding, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["DataFiles", "TrainingSetup", "run_training", "training_examples"]


@dataclass(frozen=True)
class DataFiles:
    """A training and a dev file, with the names of their columns, see `read_records`."""

    train: str | Path
    dev: str | Path
    columns: Mapping[str, str]

    def read(self) -> tuple[list[Record], list[Record]]:
        """The rows of both; raises `DataError`."""
        return read_records(self.train, self.columns), read_records(self.dev, self.columns)

    def identity(self) -> dict[str, Any]:
        """What a run learns from and is measured on, wherever the files lie."""
        hashes = {f"sha256 of the {name} file": sha256_file(Path(getattr(self, name))) for name in ("train", "dev")}
        return {**hashes, "columns": dict(self.columns)}


def training_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """The rows of a training file; raises `DataError` for one that the task cannot learn from."""
    if isinstance(task, SentenceEmbedding):
        return similarity_examples(task, records)
    return build_examples(task, tokenizer, records)


def _from_labels(
    model: TaskModel,
    train_set: ExampleDataset,
    dev_set: ExampleDataset,
    settings: TrainSettings,
    precision: str,
    process_group: ProcessGroup,
) -> FineTuning:
    """The module that learns from labels alone."""
    weights = class_weights(model.task, train_set.targets, settings)
    return FineTuning(model, dev_set, settings, precision, weights, process_group)


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained, and on what of a training file."""

    source: Checkpoint
    """Where the tokenizer comes from, with the configuration of the model that is trained."""
    task: Task
    build: Callable[[], TaskModel]
    """The model with its first weights; called when random numbers have been seeded."""
    module: Callable[[TaskModel, ExampleDataset, ExampleDataset, TrainSettings, str, ProcessGroup], FineTuning] = (
        _from_labels
    )
    """What trains it, of the model, the training and the dev set, the settings, the precision and the processes."""
    examples: Callable[[Task, TextTokenizer, Sequence[Record]], list[Example]] = training_examples
    objective: Objective | None = None
    """What the training set's targets are; by default those of the task."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """What is said of it in the report, and must be the same in a resumed run."""


class _Run(NamedTuple):
    """A run before its first step."""

    learner: TrainingSetup
    model: TaskModel
    train: ExampleDataset
    dev: ExampleDataset


def run_training(
    build_setup: Callable[[Sequence[Record], Sequence[Record]], TrainingSetup],
    bases: Sequence[str | Path],
    files: DataFiles,
    output: str | Path,
    settings: TrainSettings,
    *,
    placement: Placement,
    resume: bool,
    force: bool,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Trains what `build_setup` makes of the rows of both files; returns the report. See `fine_tune`.

    `bases` are the checkpoints that it opens: where they come from a hub, one process fetches them for all.
    """
    target = Path(output)
    with join_processes(placement) as process_group:
        tell = progress if process_group.is_rank_zero else no_progress
        torch.set_num_threads(process_group.threads(available_cores()))
        process_group.from_rank_zero(lambda: check_output(target, resume=resume, force=force))
        with process_group.sync_errors():
            check_precision(settings.precision, sharded=process_group.is_sharded)
        process_group.local_rank_zero_first(lambda: [open_checkpoint(each) for each in bases])
        with process_group.sync_errors():
            run = _prepared(build_setup, files, settings, tell)
            identity = {**run.learner.described, **files.identity(), "base": _identity(run.learner.source)}
            described = run_identity(run.learner.task, settings, process_group.world_size, identity)
        precision = process_group.from_rank_zero(lambda: _begin(target, run, settings, described, tell, resume=resume))
        with process_group.sync_errors():
            module = run.learner.module(run.model, run.train, run.dev, settings, precision.name, process_group)
        module.run = described
        started = time.monotonic()
        loggers = build_loggers(target / LOGS_DIR)
        best = fit(module, run.train, run.dev, settings, precision, target / STATE_DIR, resume=resume, loggers=loggers)
        module.model.task = run.learner.task.with_tuned_threshold(best)
        report = {
            **_results(module, best, precision),
            "seconds": round(time.monotonic() - started, 1),
            "examples": {"train": len(run.train.examples), "dev": len(run.dev.examples)},
            "files": {"train": str(files.train), "dev": str(files.dev), "columns": dict(files.columns)},
            **_origin(run.learner.source),
            **run.learner.described,
        }
        tell(f"writing the checkpoint of epoch {best['epoch']}")
        process_group.from_rank_zero(lambda: _write(target, module, run.learner.source, report))
        return report


def _prepared(
    build_setup: Callable[[Sequence[Record], Sequence[Record]], TrainingSetup],
    files: DataFiles,
    settings: TrainSettings,
    progress: Callable[[str], None],
) -> _Run:
    """The files, checked against each other and tokenized, and the model, the same in every process."""
    train_records, dev_records = files.read()
    learner = build_setup(train_records, dev_records)
    if missing := labels_without_example(learner.task, dev_records):
        progress(f"{files.dev} has no example of {len(missing)} of the labels: {', '.join(missing)}")
    progress(f"tokenizing {len(train_records)} training and {len(dev_records)} dev examples")
    task, tokenizer = learner.task, learner.source.text_tokenizer(settings.max_tokens, learner.task.windows)
    train_set = ExampleDataset(task, learner.examples(task, tokenizer, train_records), tokenizer, learner.objective)
    dev_set = ExampleDataset(task, build_examples(task, tokenizer, dev_records), tokenizer)
    pl.seed_everything(settings.seed, verbose=False)
    model = learner.build()
    model.encoder.checkpointing = settings.gradient_checkpointing
    return _Run(learner, model, train_set, dev_set)


def _begin(
    target: Path,
    run: _Run,
    settings: TrainSettings,
    described: Mapping[str, Any],
    progress: Callable[[str], None],
    *,
    resume: bool,
) -> ChosenPrecision:
    """Looks whether there is room, settles the precision, and makes the folder ready."""
    check_space(target, run.model)
    if resume:
        precision = resumed_precision(target / STATE_DIR, described)
    else:
        batch = run.train.collate(range(min(settings.batch_size, len(run.train))))
        precision = choose_precision(settings.precision, run.model, batch, run.train.objective)
        precision.tell(progress)
    prepare(target, resume=resume)
    return precision


def _write(target: Path, module: FineTuning, source: Checkpoint, report: Mapping[str, Any]) -> None:
    """The finished checkpoint with its logs, plot and report, in the place of the run's folder."""
    max_tokens = module.settings.max_tokens or source.max_tokens
    with atomic_replace_dir(target) as folder:
        save_model(module.model, folder, tokenizer_from=source.path, max_tokens=max_tokens)
        finish_logs(target, folder, module.rows, [module.model.task.metric])
        write_json(folder / REPORT_NAME, report)


def _results(module: FineTuning, best: dict[str, float], precision: ChosenPrecision) -> dict[str, Any]:
    return {
        "task": module.model.task.to_dict(),
        "metric": module.model.task.metric,
        "best": best,
        "epochs": module.history,
        "stopped_early": len(module.history) < module.settings.epochs,
        "settings": module.settings.to_dict(),
        "placement": module.process_group.describe(
            module.settings.batch_size, module.settings.gradient_accumulation_steps
        ),
        "precision": precision.name,
        "seconds_per_step": precision.seconds_per_step,
    }


def _identity(source: Checkpoint) -> str:
    """The weights and the vocabulary that a run starts from, wherever they lie."""
    return hashlib.sha256((source.sha256() + source.tokenizer().to_str()).encode()).hexdigest()


def _origin(source: Checkpoint) -> dict[str, Any]:
    return {
        "base": source.name,
        "base_revision": source.revision,
        "machine": describe(),
        "versions": installed_versions(TRAINING_TOOLS),
    }
