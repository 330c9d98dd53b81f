"""The student: some of the teacher's layers, a new model of another size, or a checkpoint of any family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.distillation.layers import student_from_layers
from bert_models.distillation.settings import DistillationSettings
from bert_models.errors import CheckpointError, TrainingError
from bert_models.families import FAMILIES
from bert_models.model import TaskModel
from bert_models.pretraining.vocabulary import plain_tokenizer
from bert_runtime.tasks import Task

__all__ = ["Student", "check_compatible", "is_checkpoint_name", "teacher_record"]


@dataclass(frozen=True)
class Student:
    """What learns from a teacher."""

    source: Checkpoint
    """Where its tokenizer comes from, with the student's own configuration."""
    build: Callable[[], TaskModel]
    """The model with its first weights; new ones are random."""

    @classmethod
    def of(cls, name: str, teacher: Checkpoint, task: Task, model: TaskModel) -> "Student":
        """`name` is a number of layers, a size of the teacher's family, or a checkpoint's folder or hub id.

        A number takes so many of the teacher's layers, embeddings and head; a size starts from random weights and has
        the teacher's vocabulary. Raises `TrainingError`, `CheckpointError` or `ConfigError`.
        """
        if name.isdecimal():
            shallow = student_from_layers(model, int(name))
            return cls(replace(teacher, config=shallow.config), lambda: shallow)
        if name in teacher.family.sizes:
            kept = {key: getattr(teacher.config, key) for key in ("vocab_size", "pad_token_id", "max_positions")}
            config = teacher.family.preset(name, **kept)
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


def teacher_record(teacher: Checkpoint) -> dict[str, Any]:
    """What is said of a teacher in the report, and must be the same in a resumed run."""
    return {"teacher": {"name": teacher.name, "revision": teacher.revision, "sha256": teacher.sha256()}}


def is_checkpoint_name(name: str) -> bool:
    """Whether a student's name is that of a folder, or of an organisation's model on the hub."""
    if name.isdecimal() or any(name in family.sizes for family in FAMILIES.values()):
        return False
    return "/" in name or Path(name).is_dir()


def check_compatible(
    teacher: Checkpoint, student: Checkpoint, distillation: DistillationSettings, *, per_token: Sequence[str]
) -> None:
    """Raises `TrainingError` where two models cannot be compared token by token, or head by head.

    `per_token` names what the answers are given for each token by.
    """
    needing = [*per_token, *(name for name in ("hidden_weight", "attention_weight") if getattr(distillation, name))]
    if needing and not _same_tokens(teacher, student):
        raise TrainingError(
            f"{student.path}: {', '.join(needing)} needs a student with the tokenizer of its teacher {teacher.path}, "
            "and they cut texts differently"
        )
    heads = teacher.config.num_heads, student.config.num_heads
    if distillation.attention_weight and heads[0] != heads[1]:
        raise TrainingError(
            f"attention_weight needs as many attention heads as the teacher has, {heads[0]}; the student has {heads[1]}"
        )


def _same_tokens(one: Checkpoint, two: Checkpoint) -> bool:
    """Whether both cut texts into the same ids."""
    if one.path == two.path:
        return True
    first, second = (plain_tokenizer(each.tokenizer()).to_str() for each in (one, two))
    return first == second
