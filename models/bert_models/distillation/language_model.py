"""Distil a masked language model on raw text, with DistilBERT's losses (Sanh et al., arXiv:1910.01108)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_models.checkpoint import load_model, open_checkpoint
from bert_models.corpus.text_files import Corpus
from bert_models.crf import IGNORE_INDEX
from bert_models.distillation.layers import LayerTrace
from bert_models.distillation.losses import attention_divergence, cosine_distance, kl_divergence
from bert_models.distillation.settings import CORPUS_DISTILLATION, DistillationSettings
from bert_models.distillation.student import Student, check_compatible, check_teacher_length, teacher_record
from bert_models.distillation.teacher import Teacher
from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.pretraining.model import MetricSum, PretrainingModel, mlm_metrics, weighted_loss
from bert_models.pretraining.model_source import LoadedModel, ModelSource, check_objective
from bert_models.pretraining.run import pretrain
from bert_models.pretraining.settings import PretrainSettings
from bert_models.saving import save_model
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_models.training.distributed.process_group import no_progress
from bert_runtime.tasks import FillMask

__all__ = ["DistilledLanguageModel", "distill_language_model"]


class DistilledLanguageModel(PretrainingModel):
    """A student with a masked-language-model head, trained on its teacher.

    Distributions over the vocabulary are compared at masked tokens only. Comparing all tokens, as DistilBERT does by
    default, would multiply 6.7 times as many token vectors by the largest matrix of both models.

    Args:
        model: the student.
        teacher: the teacher, with the same vocabulary.
        distillation: weights of the losses.
    """

    def __init__(self, model: TaskModel, teacher: TaskModel, distillation: DistillationSettings) -> None:
        super().__init__()
        self.config = model.config
        self.model, self.distillation = model, distillation
        attention = distillation.attention_weight > 0
        self.teacher = Teacher(teacher, attention=attention)
        self.trace = LayerTrace(model.encoder, model.config.num_heads, hidden=False, attention=attention)

    def measure(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor, sentence_labels: Tensor
    ) -> dict[str, MetricSum]:
        inputs = input_ids, attention_mask, token_type_ids
        hidden, expected = self.model.encoder(*inputs), self.teacher.hidden(*inputs)
        measured, logits = mlm_metrics(self.model.head, hidden, labels)
        masked, real = labels != IGNORE_INDEX, attention_mask.bool()
        if self.distillation.soft_weight:
            soft_loss = kl_divergence(logits, self.teacher.head(expected[masked]), self.distillation.temperature)
            measured["soft_loss"] = MetricSum(soft_loss, measured["mlm_loss"].num_items)
        if self.distillation.hidden_weight:
            measured["hidden_loss"] = MetricSum(cosine_distance(hidden, expected, real), real.sum())
        if self.distillation.attention_weight:
            divergence = attention_divergence(self.trace.attention(), self.teacher.trace.attention(), real)
            measured["attention_loss"] = MetricSum(divergence * real.sum(), real.sum())
        self.trace.clear()  # which would keep the step's tensors, also where its backward pass runs out of memory
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        weights = asdict(self.distillation)
        parts = {"mlm_loss": "hard", "soft_loss": "soft", "hidden_loss": "hidden", "attention_loss": "attention"}
        return weighted_loss(measured, {loss: weights[f"{part}_weight"] for loss, part in parts.items()})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        save_model(self.model, folder, tokenizer_from=tokenizer_from, max_tokens=max_tokens)


@dataclass(frozen=True, kw_only=True)
class _DistilledModel(ModelSource):
    """A student and its teacher, by name."""

    teacher: str | Path
    student: str
    distillation: DistillationSettings

    def describe(self) -> dict[str, Any]:
        return {
            **teacher_record(open_checkpoint(self.teacher)),
            "student": self.student,
            **asdict(self.distillation),
        }

    def load(self, settings: PretrainSettings) -> LoadedModel:
        source = open_checkpoint(self.teacher)
        task = source.task(FillMask.name)
        model = load_model(source, task)
        student = Student.from_name(self.student, source, task, model)
        config = student.source.config
        check_compatible(source, student.source, self.distillation, token_level=(task.name,))
        widths = model.config.hidden_size, config.hidden_size
        if self.distillation.hidden_weight and widths[0] != widths[1]:
            raise TrainingError(
                f"hidden_weight needs a student with its teacher's hidden_size {widths[0]}, found {widths[1]}"
            )
        sizes = model.config.vocab_size, config.vocab_size
        if sizes[0] != sizes[1]:
            raise TrainingError(f"expected a student with its teacher's vocab_size {sizes[0]}, found {sizes[1]}")
        check_teacher_length(source, settings.max_tokens)
        check_objective(config, settings)
        distilled = DistilledLanguageModel(student.build(), model, self.distillation)
        max_tokens = 0 if self.student in source.family.sizes else student.source.max_tokens
        return LoadedModel(student.source.path, distilled, student.source.tokenizer(), max_tokens=max_tokens)


def distill_language_model(
    teacher: str | Path,
    student: str,
    corpus: Corpus,
    output: str | Path,
    settings: PretrainSettings,
    distillation: DistillationSettings = CORPUS_DISTILLATION,
    *,
    cache: str | Path | None = None,
    placement: Placement = DEFAULT_PLACEMENT,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Distil a masked language model on raw text.

    Args:
        teacher: folder or hub id of a checkpoint with a masked-language-model head.
        student: a number of the teacher's layers, a size of its family, or a checkpoint, see `Student.from_name`.
        corpus: the raw text, see `open_corpus`.
        output: the checkpoint folder to write.
        settings: of the training; the objective must be `mlm`.
        distillation: weights of the losses.
        cache: see `bert_models.pretraining.pretrain`, also for the arguments that follow.
        placement: devices and processes.
        resume: continue an interrupted run.
        force: replace what an earlier run wrote.
        progress: called with the name of each stage.

    Returns:
        The report of the run, see `bert_models.pretraining.pretrain`.

    Raises:
        TrainingError: settings are invalid, student and teacher cannot be compared, or training fails.
        CheckpointError: a checkpoint is missing, damaged, or has no masked-language-model head.
        DataError: the corpus cannot be read.
    """
    if settings.objective != "mlm":
        raise TrainingError(f"expected the objective mlm for a distillation on a corpus, found {settings.objective}")
    source = _DistilledModel(teacher=teacher, student=student, distillation=distillation)
    return pretrain(
        source, corpus, output, settings,
        cache=cache, placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip
