"""Distilling a fine-tuned teacher into a student, on a file with labels or without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.distillation.losses import SOFT_LOSSES
from bert_models.distillation.module import PER_TOKEN_TASKS, Distillation
from bert_models.distillation.settings import TASK_DISTILLATION, DistillationSettings
from bert_models.distillation.student import Student, check_compatible, is_checkpoint_name, teacher_record
from bert_models.distillation.teacher import Teacher
from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.training import TrainSettings
from bert_models.training.class_weights import check_loss_settings, class_weights
from bert_models.training.data import ExampleDataset
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_models.training.distributed.process_group import ProcessGroup
from bert_models.training.objectives import Objective, Target
from bert_models.training.run import DataFiles, TrainingSetup, run_training, training_examples
from bert_runtime.errors import DataError, InputError
from bert_runtime.records import Record
from bert_runtime.tasks import Example, SentenceEmbedding, Task, Vocabulary
from bert_runtime.tokenization import TextTokenizer

__all__ = ["distill"]


def distill(
    teacher: str | Path,
    student: str,
    train: str | Path,
    dev: str | Path,
    output: str | Path,
    settings: TrainSettings,
    distillation: DistillationSettings = TASK_DISTILLATION,
    *,
    columns: Mapping[str, str] | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Trains `student`, see `Student.of`, on what `teacher` answers to the texts of `train`; returns the report.

    The student has the teacher's task and labels. The texts need labels only where `hard_weight` is above 0. All else
    is as in `bert_models.training.fine_tune`. Raises `TrainingError`, `CheckpointError` or `DataError`.
    """

    def build_setup(train_records: Sequence[Record], dev_records: Sequence[Record]) -> TrainingSetup:
        return _learner(open_checkpoint(teacher), student, settings, distillation, progress)

    bases = [teacher, student] if is_checkpoint_name(student) else [teacher]
    return run_training(
        build_setup, bases, DataFiles(train, dev, columns or {}), output, settings,
        placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip


def _learner(
    source: Checkpoint,
    student: str,
    settings: TrainSettings,
    distillation: DistillationSettings,
    progress: Callable[[str], None],
) -> TrainingSetup:
    """The student, and what it learns from."""
    task = source.task()
    if task.name not in SOFT_LOSSES:
        raise TrainingError(
            f"{source.path}: a teacher of {task.name} is distilled from a corpus: give --corpus in the place "
            "of --train and --dev (distill_language_model in Python)"
        )
    model = load_model(source, task)
    pupil = Student.of(student, source, task, model)
    if isinstance(task, SentenceEmbedding):  # pairs' scores say nothing that the teacher's vectors do not
        distillation = replace(distillation, hard_weight=0.0)
    labelled = distillation.hard_weight > 0
    _check_lengths(source, pupil.source, settings, distillation, per_token=task.name in PER_TOKEN_TASKS)
    check_compatible(source, pupil.source, distillation, per_token=[task.name] if task.name in PER_TOKEN_TASKS else [])
    if labelled:
        check_loss_settings(task, settings)
    elif settings.class_weights or settings.label_smoothing:
        raise TrainingError("class_weights and label_smoothing need labels that are learnt from; hard_weight is 0")
    return TrainingSetup(
        pupil.source,
        task,
        build=pupil.build if labelled else partial(_with_chain, pupil, model),
        module=partial(_lesson, source, model, distillation, labelled, progress),
        examples=training_examples if labelled else unlabelled_examples,
        objective=None if labelled else Unlabelled(task),
        described={
            **teacher_record(source),
            "student": student,
            "distillation": asdict(distillation),
        },
    )


def _check_lengths(
    teacher: Checkpoint,
    student: Checkpoint,
    settings: TrainSettings,
    distillation: DistillationSettings,
    *,
    per_token: bool,
) -> None:
    """Raises `TrainingError` where the teacher would have to read more tokens than it can."""
    longest = settings.max_tokens or student.max_tokens
    if (per_token or distillation.compares_layers) and longest > teacher.config.max_tokens:
        raise TrainingError(
            f"the student reads up to {longest} tokens and its teacher {teacher.config.max_tokens}; "
            f"give --max-tokens {teacher.config.max_tokens}"
        )


def _with_chain(pupil: Student, teacher: TaskModel) -> TaskModel:
    """The student with the scores of its teacher's linear chain, which only labels would teach it."""
    model = pupil.build()
    if (chain := getattr(teacher.head, "crf", None)) is not None:
        model.head.crf.load_state_dict(chain.state_dict())  # type: ignore[union-attr] # it has one, too
    return model


def _lesson(
    source: Checkpoint,
    teacher_model: TaskModel,
    distillation: DistillationSettings,
    labelled: bool,
    progress: Callable[[str], None],
    model: TaskModel,
    train_set: ExampleDataset,
    dev_set: ExampleDataset,
    settings: TrainSettings,
    precision: str,
    process_group: ProcessGroup,
) -> Distillation:
    """The module, with what the teacher answers to the training set, which is asked once and not in every epoch."""
    task, answers = model.task, []
    weights = class_weights(task, train_set.targets, settings) if labelled else None
    teacher = Teacher(teacher_model, hidden=distillation.hidden_weight > 0, attention=distillation.attention_weight > 0)
    if distillation.soft_weight:
        if process_group.is_rank_zero:
            progress("asking the teacher")
        # Answers for each token are those to the same windows; a whole text may be cut into other tokens.
        own = source.text_tokenizer(
            min(settings.max_tokens or source.max_tokens, source.config.max_tokens), task.windows
        )
        read = train_set.tokenizer if task.name in PER_TOKEN_TASKS else own
        theirs = ExampleDataset(task, train_set.examples, read, Unlabelled(task))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        answers = teacher.answers(theirs, device, shown=process_group.is_rank_zero)
    return Distillation(
        model, dev_set, settings, precision, weights, process_group,
        teacher=teacher, answers=answers, distillation=distillation,
    )  # fmt: skip


class Unlabelled(Objective):
    """Stands where a training set has no labels that count; targets are int64 [], zero."""

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        return np.array(0)

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        """Something to compute, where a step's time is measured."""
        return outputs.float().square().mean()


def unlabelled_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """The rows of a file without their labels; each text of a pair on its own where texts become vectors.

    Raises `DataError` naming the first row that cannot be answered.
    """
    examples = []
    for record in records:
        for text in task.inputs(record):
            try:
                (windows,) = tokenizer.encode([text])
                problem = task.input_error(text, windows)
            except InputError as error:
                problem = str(error).removeprefix("input 0: ")
            if problem is not None:
                raise DataError(f"{record.where}: {problem}")
            examples.append(Example((text,), None))
    return examples
