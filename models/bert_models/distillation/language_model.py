"""DistilBERT's recipe: a masked language model learns on raw text what a deeper one answers (arXiv:1910.01108)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_models.checkpoint import load_model, open_checkpoint
from bert_models.corpus.text_files import Corpus
from bert_models.distillation.layers import LayerTrace
from bert_models.distillation.losses import attention_distance, categorical, cosine_distance
from bert_models.distillation.settings import CORPUS_DISTILLATION, DistillationSettings
from bert_models.distillation.student import Student, check_compatible, teacher_record
from bert_models.distillation.teacher import Teacher
from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.pretraining.model import IGNORE_INDEX, MetricSum, PretrainingModel, mlm_metrics, weighted_loss
from bert_models.pretraining.model_source import LoadedModel, ModelSource, check_objective
from bert_models.pretraining.run import pretrain
from bert_models.pretraining.settings import PretrainSettings
from bert_models.saving import save_model
from bert_models.training.distributed.placement import DEFAULT_PLACEMENT, Placement
from bert_runtime.tasks import FillMask

__all__ = ["DistilledLanguageModel", "distill_language_model"]


class DistilledLanguageModel(PretrainingModel):
    """A student under a masked-language head, and beside it the teacher that it learns from.

    Distributions over the vocabulary are compared where tokens are masked: all tokens would cost 6.7 times as many
    rows of the largest matrix in both models.
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
        chosen, real = labels != IGNORE_INDEX, attention_mask.bool()
        if self.distillation.soft_weight:
            answers = self.teacher.head(expected[chosen])
            measured["soft_loss"] = MetricSum(
                categorical(logits, answers, self.distillation.temperature), measured["mlm_loss"].number
            )
        if self.distillation.hidden_weight:
            measured["hidden_loss"] = MetricSum(cosine_distance(hidden, expected, real), real.sum())
        if self.distillation.attention_weight:
            distance = attention_distance(self.trace.attention(), self.teacher.trace.attention(), real)
            measured["attention_loss"] = MetricSum(distance * real.sum(), real.sum())
        return measured

    def loss(self, measured: dict[str, MetricSum]) -> Tensor:
        weights = asdict(self.distillation)
        parts = {"mlm_loss": "hard", "soft_loss": "soft", "hidden_loss": "hidden", "attention_loss": "attention"}
        return weighted_loss(measured, {loss: weights[f"{part}_weight"] for loss, part in parts.items()})

    def save(self, folder: Path, tokenizer_from: Path, max_tokens: int) -> None:
        save_model(self.model, folder, tokenizer_from=tokenizer_from, max_tokens=max_tokens)


@dataclass(frozen=True, kw_only=True)
class _Pupil(ModelSource):
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

    def open(self, settings: PretrainSettings) -> LoadedModel:
        source = open_checkpoint(self.teacher)
        task = source.task(FillMask.name)
        model = load_model(source, task)
        pupil = Student.of(self.student, source, task, model)
        check_compatible(source, pupil.source, self.distillation, per_token=(task.name,))
        widths = model.config.hidden_size, pupil.source.config.hidden_size
        if self.distillation.hidden_weight and widths[0] != widths[1]:
            raise TrainingError(
                f"hidden_weight needs a student as wide as its teacher, {widths[0]}; the student is {widths[1]} wide"
            )
        sizes = model.config.vocab_size, pupil.source.config.vocab_size
        if sizes[0] != sizes[1]:
            raise TrainingError(f"expected a student with its teacher's {sizes[0]} tokens, found {sizes[1]}")
        check_objective(pupil.source.config, settings)
        learner = DistilledLanguageModel(pupil.build(), model, self.distillation)
        return LoadedModel(pupil.source.path, learner, pupil.source.tokenizer())


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
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Trains `student`, see `Student.of`, on raw text as `teacher`, which has a masked-language head, fills masks.

    `settings.objective` must be `mlm`; all else is as in `bert_models.pretraining.pretrain`.
    """
    if settings.objective != "mlm":
        raise TrainingError(f"a corpus is distilled with the objective mlm, found {settings.objective}")
    start = _Pupil(teacher=teacher, student=student, distillation=distillation)
    return pretrain(
        start, corpus, output, settings,
        cache=cache, placement=placement, resume=resume, force=force, progress=progress,
    )  # fmt: skip
