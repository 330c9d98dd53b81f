"""A training run on labelled files: from files to a checkpoint, for fine-tuning and for distillation."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl

from bert_models.checkpoint import Checkpoint, open_checkpoint
from bert_models.dropout import set_dropout
from bert_models.model import TaskModel
from bert_models.saving import save_model
from bert_models.training.class_weights import class_weights
from bert_models.training.data import ExampleDataset
from bert_models.training.data_files import DataFiles, DataRows
from bert_models.training.distributed.placement import Placement
from bert_models.training.distributed.process_group import ProcessGroup
from bert_models.training.in_batch_negatives import ranking_example
from bert_models.training.infer_task import labels_without_example
from bert_models.training.lifecycle import (
    describe_environment,
    describe_run,
    prepare_run,
    start_run,
    write_checkpoint,
)
from bert_models.training.logs import build_loggers
from bert_models.training.loop import fit
from bert_models.training.module import FineTuning, run_identity
from bert_models.training.objectives import Objective
from bert_models.training.precision import ChosenPrecision, choose_precision, num_measured
from bert_models.training.relevance import check_dev_examples, relevance_examples
from bert_models.training.run_dir import LOGS_DIR, STATE_DIR
from bert_models.training.seeding import seed_from_indices
from bert_models.training.selection import selected_metric
from bert_models.training.settings import TrainSettings
from bert_models.training.similarity import similarity_examples
from bert_models.training.unknown_labels import check_dev_labels
from bert_runtime.errors import DataError
from bert_runtime.evaluation import build_examples
from bert_runtime.records import Record
from bert_runtime.tasks import Example, Reranking, SentenceEmbedding, SparseEmbedding, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["TrainingSetup", "run_training", "training_examples"]


def training_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """Return the examples of a training file.

    Raises:
        DataError: the task cannot be trained on a row; the message names it.
    """
    if isinstance(task, SentenceEmbedding):
        return similarity_examples(task, records)
    if isinstance(task, SparseEmbedding):
        return [ranking_example(task, record) for record in records]
    if isinstance(task, Reranking):
        return relevance_examples(records)
    return build_examples(task, tokenizer, records)


def _build_fine_tuning(
    model: TaskModel,
    train_set: ExampleDataset,
    dev_set: ExampleDataset,
    settings: TrainSettings,
    precision: str,
    process_group: ProcessGroup,
) -> FineTuning:
    """Return the module that learns from labels alone."""
    weights = class_weights(model.task, train_set.targets, settings)
    return FineTuning(model, dev_set, settings, precision, weights, process_group)


@dataclass(frozen=True)
class TrainingSetup:
    """The model that a run trains, and how it uses the training file: by default, it fine-tunes on labels."""

    source: Checkpoint
    """Checkpoint with the tokenizer and the configuration of the trained model."""
    task: Task
    """The task that is trained."""
    build: Callable[[], TaskModel]
    """Builds the model with its initial weights; called after seeding."""
    module: Callable[[TaskModel, ExampleDataset, ExampleDataset, TrainSettings, str, ProcessGroup], FineTuning] = (
        _build_fine_tuning
    )
    """Builds the Lightning module from model, training set, dev set, settings, precision and process group."""
    examples: Callable[[Task, TextTokenizer, Sequence[Record]], list[Example]] = training_examples
    """Turns the rows of the training file into examples."""
    objective: Objective | None = None
    """Builds the targets of the training set; by default the objective of the task."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the report."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Entries that must match for a run to be resumed, beside settings and the contents of files and base."""
    notes: Sequence[str] = ()
    """Lines of text on what the rows and the base decided, which are reported before training."""


class _PreparedRun(NamedTuple):
    """A run before its first step."""

    setup: TrainingSetup
    rows: DataRows
    unknown_labels: dict[str, Any] | None
    """Report on labels that only dev rows have, see `check_dev_labels`."""
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
    """Train on labelled files and write the checkpoint of the best epoch; return the report. See `fine_tune`.

    Args:
        build_setup: returns what to train, from the rows of the training and the dev file.
        bases: checkpoints that `build_setup` opens; if they are on a hub, one process per machine downloads them first.
        files: the training file, and the dev file if there is one.
        output: folder of the checkpoint.
        settings: the settings of the run.
        placement: number of processes, and how they share the model.
        resume: go on with the interrupted run in `output`.
        force: replace what an earlier run wrote.
        progress: called with a line of text at every stage.

    Raises:
        TrainingError: the settings, the output or the machine do not allow the run, or it was interrupted.
        CheckpointError: a base cannot be used.
        DataError: a file cannot be used.
    """
    folder = Path(output)
    with start_run(folder, settings, placement, progress, resume=resume, force=force) as started:
        process_group, report_progress = started
        process_group.local_rank_zero_first(lambda: [open_checkpoint(base) for base in bases])
        with process_group.sync_errors():
            run = _load_run(build_setup, files, settings, report_progress)
            setup = run.setup
            data_identity = {**setup.identity, **files.identity(run.rows), "base": _base_identity(setup.source)}
            data_identity["metric"] = selected_metric(setup.task, run.dev.examples, settings)  # not only what was given
            identity = run_identity(setup.task, settings, process_group.world_size, data_identity)
        precision = process_group.from_rank_zero(
            lambda: prepare_run(
                folder, run.model, identity, lambda: _choose_precision(run, settings), report_progress, resume=resume
            )
        )
        # A module may have new weights, too, and how many numbers a measured precision drew depends on the time.
        seed_from_indices(settings.seed)
        with process_group.sync_errors():
            module = setup.module(run.model, run.train, run.dev, settings, precision.name, process_group)
        module.identity = identity
        start = time.monotonic()
        loggers = build_loggers(folder / LOGS_DIR)
        best = fit(module, run.train, run.dev, settings, precision, folder / STATE_DIR, resume=resume, loggers=loggers)
        module.model.task = setup.task.with_tuned_threshold(best)
        report = {
            **_describe_results(module, best),
            **describe_run(module, precision, time.monotonic() - start),
            "examples": {"train": len(run.train.examples), "dev": len(run.dev.examples)},
            "files": files.describe(),
            **({"dev_split": run.rows.split} if run.rows.split else {}),
            **({"unknown_labels": run.unknown_labels} if run.unknown_labels else {}),
            "base": setup.source.name,
            "base_revision": setup.source.revision,
            **describe_environment(),
            **setup.described,
        }
        report_progress(f"writing the checkpoint of epoch {best['epoch']}")
        process_group.from_rank_zero(lambda: _write(folder, module, setup.source, report))
        return report


def _load_run(
    build_setup: Callable[[Sequence[Record], Sequence[Record]], TrainingSetup],
    files: DataFiles,
    settings: TrainSettings,
    report_progress: Callable[[str], None],
) -> _PreparedRun:
    """Read, check and tokenize the files, and build the model, with the same weights in every process."""
    rows = files.read(settings)
    if rows.split:
        report_progress(_describe_split(rows.split, files))
    setup = build_setup(rows.train, rows.dev)
    for note in setup.notes:
        report_progress(note)
    dev_records, unknown_labels = _scored_rows(setup.task, rows, files, settings, report_progress)
    report_progress(f"tokenizing {len(rows.train)} training and {len(dev_records)} dev examples")
    task, tokenizer = setup.task, setup.source.text_tokenizer(settings.max_tokens, setup.task.windows)
    train_set = ExampleDataset(task, setup.examples(task, tokenizer, rows.train), tokenizer, setup.objective)
    dev_set = ExampleDataset(task, _dev_examples(task, tokenizer, dev_records, files), tokenizer, evaluated=True)
    selected_metric(task, dev_set.examples, settings)  # raises before anything is trained
    pl.seed_everything(settings.seed, verbose=False)
    model = setup.build()
    model.encoder.checkpointing = settings.gradient_checkpointing
    model.encoder.embeddings.token.requires_grad_(not settings.freeze_embeddings)
    if settings.dropout is not None:
        set_dropout(model, settings.dropout)
    return _PreparedRun(setup, rows, unknown_labels, model, train_set, dev_set)


def _describe_split(split: Mapping[str, Any], files: DataFiles) -> str:
    by_label = "stratified by label, " if split["stratified"] else ""
    size = f"{split['rows']} of {split['of']} rows"
    return f"holding out {size} of {files.train} as dev set ({by_label}seed {split['seed']})"


def _scored_rows(
    task: Task, rows: DataRows, files: DataFiles, settings: TrainSettings, report_progress: Callable[[str], None]
) -> tuple[list[Record], dict[str, Any] | None]:
    """Return the dev rows that can be scored, and the report on those that cannot; report labels that one side lacks.

    Raises:
        DataError: no row can be scored.
    """
    dev = check_dev_labels(task, rows.train, rows.dev, settings.unknown_labels, files.dev_name)
    if dev.warning:
        report_progress(dev.warning)
    if not dev.records:
        raise DataError(f"{files.dev_name}: expected rows with labels of the training file, found none")
    if missing := labels_without_example(task, dev.records):
        report_progress(f"{files.dev_name} has no example of {len(missing)} of the labels: {', '.join(missing)}")
    return dev.records, dev.report


def _dev_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record], files: DataFiles) -> list[Example]:
    """Return the examples of the dev rows; rows of the training file may lack what dev rows need."""
    try:
        examples = build_examples(task, tokenizer, records)
        if isinstance(task, Reranking):
            check_dev_examples(examples, files.dev_name)
        return examples
    except DataError as error:
        if files.dev is not None:
            raise
        raise DataError(
            f"{error}; rows of the training file are held out as dev set, give another with --dev"
        ) from None


def _choose_precision(run: _PreparedRun, settings: TrainSettings) -> ChosenPrecision:
    items = min(settings.batch_size, len(run.train))
    measured = num_measured(items, run.train.collate(range(items)).input_ids.numel())
    batch = run.train.collate(range(measured))
    return choose_precision(settings.precision, run.model, batch, run.train.objective)


def _write(output: Path, module: FineTuning, source: Checkpoint, report: Mapping[str, Any]) -> None:
    max_tokens = module.settings.max_tokens or source.max_tokens

    def save(folder: Path) -> None:
        save_model(module.model, folder, tokenizer_from=source.path, max_tokens=max_tokens)

    write_checkpoint(output, save, module, [module.metric], report)


def _describe_results(module: FineTuning, best: dict[str, float]) -> dict[str, Any]:
    return {
        "task": module.model.task.to_dict(),
        "metric": module.metric,
        "best": best,
        "epochs": module.history,
        "stopped_early": len(module.history) < module.settings.epochs,
    }


def _base_identity(source: Checkpoint) -> str:
    """Return a hash of the weights and the tokenizer that a run starts from, wherever they lie."""
    return hashlib.sha256((source.sha256() + source.tokenizer().to_str()).encode()).hexdigest()
