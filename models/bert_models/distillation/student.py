"""The student: layers of the teacher, a new model of a named size, or a checkpoint of any family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.distillation.layers import student_from_layers
from bert_models.distillation.settings import DistillationSettings
from bert_models.errors import CheckpointError, TrainingError
from bert_models.families import FAMILIES
from bert_models.first_token import check_prunable
from bert_models.model import TaskModel
from bert_models.pretraining.vocabulary import plain_tokenizer
from bert_models.pruned_checkpoint import set_token_pruning, with_token_pruning
from bert_runtime.tasks import Task

__all__ = ["Student", "check_compatible", "check_teacher_length", "is_checkpoint_name", "teacher_record"]


@dataclass(frozen=True)
class Student:
    """The model to train: its tokenizer and configuration, and how to build it."""

    source: Checkpoint
    """Checkpoint with the student's tokenizer, and with its configuration in `config`."""
    build: Callable[[], TaskModel]
    """Returns the model with its initial weights; those that no checkpoint gives are random."""

    @classmethod
    def from_name(cls, name: str, teacher: Checkpoint, task: Task, model: TaskModel) -> "Student":
        """Choose a student by name.

        Args:
            name: a number of layers to copy from the teacher together with its embeddings and head (DistilBERT's
                initialisation), a size of its family for random weights with its vocabulary, or the folder or hub id of
                a checkpoint.
            teacher: the teacher's checkpoint.
            task: the task of both.
            model: the teacher's loaded model.

        Raises:
            TrainingError: `name` is none of these, or the teacher has fewer layers.
            CheckpointError: the family of the student's checkpoint has no head for `task`.
        """
        if name.isdecimal():
            shallow = student_from_layers(model, int(name))
            return cls(replace(teacher, config=shallow.config), lambda: shallow)
        if name in teacher.family.sizes:
            shared = {key: getattr(teacher.config, key) for key in ("vocab_size", "pad_token_id", "max_positions")}
            config = teacher.family.preset(name, **shared)
            return cls(replace(teacher, config=config), lambda: TaskModel(config, task))
        try:
            source = open_checkpoint(name)
        except CheckpointError as error:
            sizes = ", ".join(teacher.family.sizes)
            raise TrainingError(
                f"expected a student: a number of the teacher's layers, a size of {teacher.family.name} ({sizes}), or "
                f"a checkpoint's folder or hub id; found {name!r} ({error})"
            ) from None
        source.require_head(task.name)
        return cls(source, lambda: load_model(source, task, new_head=True))

    def pruned(self, schedule: str | None, task: Task) -> "Student":
        """Return the student with another schedule of token pruning than its own, see `with_token_pruning`.

        Raises:
            ConfigError: the schedule does not fit the student, or the task reads every token.
        """
        source = with_token_pruning(self.source, schedule)
        check_prunable(source.config, task)
        return Student(source, lambda: set_token_pruning(self.build(), source.config.token_pruning))


def teacher_record(teacher: Checkpoint) -> dict[str, Any]:
    """Return the entry of the report that names a teacher."""
    return {"teacher": {"name": teacher.name, "revision": teacher.revision, "sha256": teacher.sha256()}}


def is_checkpoint_name(name: str) -> bool:
    """Return whether a student's name is a folder, or a hub id with an organisation."""
    if name.isdecimal() or any(name in family.sizes for family in FAMILIES.values()):
        return False
    return "/" in name or Path(name).is_dir()


def check_compatible(
    teacher: Checkpoint, student: Checkpoint, distillation: DistillationSettings, *, token_level: Sequence[str]
) -> None:
    """Check that the losses can compare the two models.

    Args:
        teacher: the teacher's checkpoint.
        student: the student's checkpoint.
        distillation: the losses.
        token_level: what else compares outputs token by token: the name of the task, if it has an output per token.

    Raises:
        TrainingError: tokens are compared but the tokenizers differ or a model prunes tokens, or attention is but the
            numbers of heads differ.
    """
    needing = [*token_level, *(name for name in ("hidden_weight", "attention_weight") if getattr(distillation, name))]
    if needing and not _same_tokens(teacher, student):
        raise TrainingError(
            f"{student.path}: {', '.join(needing)} needs a student with the tokenizer of its teacher {teacher.path}, "
            "and theirs differ"
        )
    all_tokens = {"hidden_weight": (teacher,), "attention_weight": (teacher, student)}
    for name, checkpoints in all_tokens.items():
        for checkpoint in checkpoints:
            if getattr(distillation, name) and checkpoint.config.token_pruning is not None:
                raise TrainingError(
                    f"{name} needs a {'teacher' if checkpoint is teacher else 'student'} that keeps all tokens; "
                    f"{checkpoint.path} prunes them ({checkpoint.config.token_pruning})"
                )
    heads = teacher.config.num_heads, student.config.num_heads
    if distillation.attention_weight and heads[0] != heads[1]:
        raise TrainingError(
            f"attention_weight needs a student with its teacher's {heads[0]} attention heads, found {heads[1]}"
        )


def check_teacher_length(teacher: Checkpoint, max_tokens: int) -> None:
    """Raise `TrainingError` if the teacher, which reads its student's tokens, cannot read `max_tokens` of them."""
    if max_tokens > teacher.config.max_tokens:
        raise TrainingError(
            f"expected at most the teacher's {teacher.config.max_tokens} tokens for the student, found {max_tokens}; "
            f"give --max-tokens {teacher.config.max_tokens}"
        )


def _same_tokens(first: Checkpoint, second: Checkpoint) -> bool:
    """Return whether both tokenizers give the same ids."""
    if first.path == second.path:
        return True
    return plain_tokenizer(first.tokenizer()).to_str() == plain_tokenizer(second.tokenizer()).to_str()
