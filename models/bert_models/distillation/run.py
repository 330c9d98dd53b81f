"""Distil a fine-tuned teacher into a student, on a file with or without labels."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding
from torch import Tensor

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.crf import IGNORE_INDEX
from bert_models.distillation.hidden_states import HiddenStates
from bert_models.distillation.losses import SOFT_LOSSES
from bert_models.distillation.module import Distillation
from bert_models.distillation.settings import TASK_DISTILLATION, DistillationSettings
from bert_models.distillation.student import (
    Student,
    check_compatible,
    check_teacher_length,
    is_checkpoint_name,
    teacher_record,
)
from bert_models.distillation.teacher import Teacher
from bert_models.distillation.teacher_outputs import ComputeOutputs, TeacherOutputs
from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.pruned_checkpoint import pruning_record
from bert_models.training import TrainSettings
from bert_models.training.class_weights import check_loss_settings, class_weights
from bert_models.training.data import ExampleDataset
from bert_models.training.data_files import DataFiles
from bert_models.training.dev_split import LabelReader
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_models.training.distributed.process_group import ProcessGroup, no_progress
from bert_models.training.infer_task import task_label_reader
from bert_models.training.objective import Objective, Target
from bert_models.training.objectives import word_target
from bert_models.training.run import TrainingSetup, run_training, training_examples
from bert_runtime.errors import DataError, InputError
from bert_runtime.numerics import IntArray
from bert_runtime.records import Record
from bert_runtime.tasks import Example, SentenceEmbedding, SparseEmbedding, Task, TokenClassification, Vocabulary
from bert_runtime.tasks.tokens import join_words, text_token_indices
from bert_runtime.tokenization import TextTokenizer

__all__ = ["distill"]


def distill(
    teacher: str | Path,
    student: str,
    train: str | Path,
    dev: str | Path | None,
    output: str | Path,
    settings: TrainSettings,
    distillation: DistillationSettings = TASK_DISTILLATION,
    *,
    columns: Mapping[str, str] | None = None,
    prune_tokens: str | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    teacher_outputs: Path | None = None,
    compute_outputs: ComputeOutputs | None = None,
    hidden_states: HiddenStates | None = None,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Distil a fine-tuned teacher into a student with the same task and labels.

    Args:
        teacher: folder or hub id of a fine-tuned checkpoint.
        student: a number of the teacher's layers, a size of its family, or a checkpoint, see `Student.from_name`.
        train: the training file; it needs labels only if `hard_weight` is above 0.
        dev: a labelled file, which decides which epoch is best; `None` holds rows of the training file out for it.
        output: the checkpoint folder to write.
        settings: of the training.
        distillation: weights of the losses.
        columns: our column names to the files', see `bert_models.training.fine_tune`, also for the arguments that
            follow.
        prune_tokens: the student's schedule of token pruning.
        placement: devices and processes.
        resume: continue an interrupted run.
        force: replace what an earlier run wrote.
        teacher_outputs: a file for the teacher's outputs, for several students of one teacher on one training file:
            it is read if it is there, and else written.
        compute_outputs: computes the teacher's outputs in place of its PyTorch model, for example `run_encodings` of
            its bundle.
        hidden_states: keeps the teacher's hidden states, so that they are computed in one epoch only, for several
            students of one teacher on one training file. A resumed run is then not the same to the last bit.
        progress: called with the name of each stage.

    Returns:
        The report of the run, see `bert_models.training.fine_tune`.

    Raises:
        TrainingError: settings are invalid, student and teacher cannot be compared, or training fails.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: a file cannot be read, or a row does not fit the task.
    """

    def build_setup(train_records: Sequence[Record], dev_records: Sequence[Record]) -> TrainingSetup:
        source = TeacherOutputs(teacher_outputs, compute_outputs, hidden_states)
        return _training_setup(
            open_checkpoint(teacher), student, settings, distillation, source, progress, prune_tokens
        )

    def find_label_reader() -> LabelReader | None:
        return task_label_reader(open_checkpoint(teacher).task())

    bases = [teacher, student] if is_checkpoint_name(student) else [teacher]
    return run_training(
        build_setup, bases, DataFiles(train, dev, columns or {}, find_label_reader), output, settings,
        placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip


def _training_setup(
    teacher: Checkpoint,
    student_name: str,
    settings: TrainSettings,
    distillation: DistillationSettings,
    teacher_outputs: TeacherOutputs,
    progress: Callable[[str], None],
    prune_tokens: str | None,
) -> TrainingSetup:
    """Choose the student, and check that it can be distilled with these settings."""
    task = teacher.task()
    if settings.unknown_labels == "keep":
        raise TrainingError("unknown_labels must be skip or error: a student has the labels of its teacher; found keep")
    if isinstance(task, SparseEmbedding):
        raise TrainingError(
            f"{teacher.path}: expected a teacher of a task that can be distilled, found {task.name}; train the smaller "
            f"model instead: bert-export train --task {task.name} --base STUDENT"
        )
    if task.name not in SOFT_LOSSES:
        raise TrainingError(
            f"{teacher.path}: a teacher of {task.name} is distilled on a corpus: give --corpus instead of --train and "
            "--dev (distill_language_model in Python)"
        )
    model = load_model(teacher, task)
    student = Student.from_name(student_name, teacher, task, model).pruned(prune_tokens, task)
    if isinstance(task, SentenceEmbedding) and distillation.hard_weight:
        progress("embeddings are learnt from the teacher's vectors alone: the labels of pairs are not used")
        distillation = replace(distillation, hard_weight=0.0)
    labelled = distillation.hard_weight > 0
    token_level = [task.name] if task.has_output_per_token else []
    if token_level or distillation.compares_layers:
        check_teacher_length(teacher, settings.max_tokens or student.source.max_tokens)
    check_compatible(teacher, student.source, distillation, token_level=token_level)
    if labelled:
        check_loss_settings(task, settings)
    elif settings.class_weights or settings.label_smoothing:
        raise TrainingError(
            "class_weights and label_smoothing need a hard_weight above 0, found 0: labels are not used"
        )
    return TrainingSetup(
        student.source,
        task,
        build=student.build if labelled else partial(_with_teacher_crf, student, model),
        module=partial(_build_module, teacher, model, distillation, labelled, teacher_outputs, progress),
        examples=training_examples if labelled else unlabelled_examples,
        objective=None if labelled else UnlabelledObjective(task),
        described={
            **teacher_record(teacher),
            "student": student_name,
            "distillation": asdict(distillation),
            **pruning_record(student.source),
        },
        identity={
            "teacher": teacher.sha256(),
            "student": None if is_checkpoint_name(student_name) else student_name,  # else the base is the student
            "distillation": asdict(distillation),
            **pruning_record(student.source),
        },
    )


def _with_teacher_crf(student: Student, teacher: TaskModel) -> TaskModel:
    """Build the student with its teacher's CRF transitions, which would be learned from labels only."""
    model = student.build()
    if (crf := getattr(teacher.head, "crf", None)) is not None:
        model.head.crf.load_state_dict(crf.state_dict())  # type: ignore[union-attr] # the task gives both a CRF
    return model


def _build_module(
    teacher_checkpoint: Checkpoint,
    teacher_model: TaskModel,
    distillation: DistillationSettings,
    labelled: bool,
    teacher_outputs: TeacherOutputs,
    progress: Callable[[str], None],
    model: TaskModel,
    train_set: ExampleDataset,
    dev_set: ExampleDataset,
    settings: TrainSettings,
    precision: str,
    process_group: ProcessGroup,
) -> Distillation:
    """Build the Lightning module. The teacher's outputs for the training set are computed once, not in every epoch."""
    outputs: list[Tensor] = []
    weights = class_weights(model.task, train_set.targets, settings) if labelled else None
    teacher = Teacher(teacher_model, hidden=distillation.hidden_weight > 0, attention=distillation.attention_weight > 0)
    if distillation.soft_weight:
        if process_group.is_rank_zero:
            progress("computing the teacher's outputs")
        examples = _teacher_examples(teacher_checkpoint, model.task, train_set, settings)
        identity = {"teacher": teacher_checkpoint.sha256(), "tokens": _tokens_sha256(examples)}
        outputs = teacher_outputs.read(teacher, examples, identity, process_group)
    return Distillation(
        model, dev_set, settings, precision, weights, process_group,
        teacher=teacher, teacher_outputs=outputs, distillation=distillation,
        hidden_states=teacher_outputs.hidden_states,
    )  # fmt: skip


def _tokens_sha256(examples: ExampleDataset) -> str:
    """Return a hash of all sequences."""
    digest = hashlib.sha256()
    for encoding in examples.encodings:
        digest.update(np.array([len(encoding), *encoding.ids, *encoding.type_ids], dtype="<i8").tobytes())
    return digest.hexdigest()


def _teacher_examples(
    teacher: Checkpoint, task: Task, train_set: ExampleDataset, settings: TrainSettings
) -> ExampleDataset:
    """Tokenize the training set for the teacher.

    Outputs per token require the student's tokens and windows. Otherwise the teacher's own tokenizer is used.
    """
    tokenizer = train_set.tokenizer
    if not task.has_output_per_token:
        max_tokens = min(settings.max_tokens or teacher.max_tokens, teacher.config.max_tokens)
        tokenizer = teacher.text_tokenizer(max_tokens, task.windows)
    return ExampleDataset(task, train_set.examples, tokenizer, UnlabelledObjective(task))


class UnlabelledObjective(Objective):
    """Objective of a training set without labels: every target is 0, int64 [].

    Where labels are those of words, targets are int64 [S], 0 at the tokens that count: the first of every word, as with
    labels, or all of a text whose words are not known.
    """

    def target(self, example: Example, encoding: Encoding, vocabulary: Vocabulary) -> Target:
        if not isinstance(self.task, TokenClassification):
            return np.array(0)
        if example.target is not None:
            words, _ = example.target
            return word_target(encoding, words, np.zeros(len(words), dtype=np.int64))
        target = np.full(len(encoding), IGNORE_INDEX, dtype=np.int64)
        target[text_token_indices(encoding)] = 0
        return target

    def loss(self, model: TaskModel, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a loss that is computed only where the time of a step is measured."""
        return outputs.float().square().mean()


def unlabelled_examples(task: Task, tokenizer: TextTokenizer, records: Sequence[Record]) -> list[Example]:
    """Convert the rows of a file to examples without labels; for sentence embeddings, both texts of a pair separately.

    Raises:
        DataError: the task does not accept a row; the message names the first one.
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
            examples.append(Example((text,), _unlabelled_words(task, record)))
    return examples


def _unlabelled_words(task: Task, record: Record) -> tuple[IntArray, None] | None:
    """Return where the words of a row are that a task labels, and no labels; `None` where they are not known."""
    if not isinstance(task, TokenClassification) or "tokens" not in record.fields:
        return None
    return join_words(record.tokens())[1], None
