"""Fine-tuning a checkpoint on a labelled file, with Lightning's training loop."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
from bert_models.training.objectives import Objective
from bert_models.training.place import LOGS, REPORT_NAME, STATE, TRAINING_TOOLS, check_output, check_space, prepare
from bert_models.training.precision import ChosenPrecision, check_precision, choose_precision
from bert_models.training.settings import TrainSettings
from bert_models.training.similarity import similarity_examples
from bert_models.training.task_of_data import task_of_data
from bert_runtime.evaluation import checked_examples
from bert_runtime.machine import available_cores, describe, installed_versions
from bert_runtime.records import Record, read_records
from bert_runtime.tasks import Example, SentenceEmbedding, Task
from bert_runtime.tokenization import TextTokenizer

__all__ = ["REPORT_NAME", "Files", "Learner", "check_run", "fine_tune", "train_learner"]


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
    check_run(Path(output), settings, resume=resume, force=force)
    source = open_checkpoint(base)
    files = Files(train, dev, columns or {})
    chosen = task_of_data(task, source, *files.records, task_settings or {})
    check_loss(chosen, settings)
    learner = Learner(source, chosen, build=lambda: load_model(source, chosen, new_head=True))
    return train_learner(learner, files, output, settings, resume=resume, progress=progress)


def check_run(target: Path, settings: TrainSettings, *, resume: bool, force: bool) -> None:
    """Raises `TrainingError` for what is wrong before any file is read."""
    check_output(target, resume=resume, force=force)
    check_precision(settings.precision)


class Files:
    """A training and a dev file, with the names of their columns; reads both, or raises `DataError`."""

    def __init__(self, train: str | Path, dev: str | Path, columns: Mapping[str, str]) -> None:
        self.named = {"train": str(train), "dev": str(dev), "columns": dict(columns)}
        self.records = read_records(train, columns), read_records(dev, columns)


def training_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """The rows of a training file; raises `DataError` for one that the task cannot learn from."""
    if isinstance(task, SentenceEmbedding):
        return similarity_examples(task, records)
    return checked_examples(task, tokenizer, records)


def fine_tuning(
    model: TaskModel, train_set: Examples, dev_set: Examples, settings: TrainSettings, precision: str
) -> FineTuning:
    """The module that learns from labels alone."""
    return FineTuning(model, dev_set, settings, precision, class_weights(model.task, train_set.targets, settings))


@dataclass(frozen=True)
class Learner:
    """What is trained, and on what of a training file."""

    source: Checkpoint
    """Where the tokenizer comes from, with the configuration of the model that is trained."""
    task: Task
    build: Callable[[], TaskModel]
    """The model with its first weights; called when random numbers have been seeded."""
    module: Callable[[TaskModel, Examples, Examples, TrainSettings, str], FineTuning] = fine_tuning
    """What trains it, of the model, the training and the dev set, the settings and the precision."""
    examples: Callable[[Task, TextTokenizer, Sequence[Record]], list[Example]] = training_examples
    objective: Objective | None = None
    """What the training set's targets are; by default those of the task."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """What is said of it in the report, and must be the same in a resumed run."""


def train_learner(
    learner: Learner,
    files: Files,
    output: str | Path,
    settings: TrainSettings,
    *,
    resume: bool,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Trains what `check_run` has let pass, and writes the checkpoint of the best epoch; returns the report."""
    target, source, chosen = Path(output), learner.source, learner.task
    train_records, dev_records = files.records
    pl.seed_everything(settings.seed, verbose=False)
    model = learner.build()
    model.encoder.checkpointing = settings.gradient_checkpointing
    check_space(target, model)
    progress(f"tokenizing {len(train_records)} training and {len(dev_records)} dev examples")
    tokenizer = source.text_tokenizer(settings.max_tokens, chosen.windows)
    train_set = Examples(chosen, learner.examples(chosen, tokenizer, train_records), tokenizer, learner.objective)
    dev_set = Examples(chosen, checked_examples(chosen, tokenizer, dev_records), tokenizer)
    state = target / STATE
    run = described_run(chosen, settings, learner.described)
    precision = resumed_precision(state, run) if resume else _precision(settings, model, train_set, progress)
    prepare(target, resume=resume)
    module = learner.module(model, train_set, dev_set, settings, precision.name)
    module.run = run
    started = time.monotonic()
    loggers = build_loggers(target / LOGS)
    best = fit(module, train_set, dev_set, settings, precision, state, resume=resume, loggers=loggers)
    model.task = chosen.tuned(best)
    report = {
        **_results(module, best, precision),
        "seconds": round(time.monotonic() - started, 1),
        "examples": {"train": len(train_set.examples), "dev": len(dev_set.examples)},
        "files": files.named,
        **_origin(source),
        **learner.described,
    }
    progress(f"writing the checkpoint of epoch {best['epoch']}")
    with replaced_folder(target) as folder:
        save_model(model, folder, tokenizer_from=source.path, max_tokens=settings.max_tokens or source.max_tokens)
        if (target / LOGS).is_dir():  # not removed by somebody meanwhile, for which no training is to be lost
            shutil.copytree(target / LOGS, folder / LOGS)
        draw(folder / PLOT_NAME, module.rows, chosen.metric)
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


def _precision(
    settings: TrainSettings, model: TaskModel, train_set: Examples, progress: Callable[[str], None]
) -> ChosenPrecision:
    torch.set_num_threads(available_cores())
    batch = train_set.collate(range(min(settings.batch_size, len(train_set))))
    chosen = choose_precision(settings.precision, model, batch, train_set.objective)
    chosen.tell(progress)
    return chosen
