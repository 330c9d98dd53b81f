"""Weights of the losses that a student is trained with."""

from dataclasses import dataclass

from bert_models.errors import TrainingError

__all__ = ["CORPUS_DISTILLATION", "TASK_DISTILLATION", "DistillationSettings"]


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """Weights of up to four losses, whose sum the student minimises.

    Soft targets and temperature are those of Hinton et al. (arXiv:1503.02531).

    Raises:
        TrainingError: a weight is negative, the temperature is not positive, or no weight of the teacher is above 0.
    """

    temperature: float = 2.0
    """Divides the logits of teacher and student before the softmax; the soft loss is scaled by its square."""
    soft_weight: float = 1.0
    """Weight of the divergence between the outputs of teacher and student."""
    hard_weight: float = 1.0
    """Weight of the loss on labels or on masked tokens; with 0, the training data need no labels."""
    hidden_weight: float = 0.0
    """Weight of the cosine distance between hidden states: after every layer (tasks), after the last one (corpora).

    Of a student that prunes tokens, the first token's are compared, as those of all layers in Patient Knowledge
    Distillation (Sun et al., arXiv:1908.09355)."""
    attention_weight: float = 0.0
    """Weight of the divergence between the last layers' attention (MiniLM; Wang et al., arXiv:2002.10957)."""

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in self.__dataclass_fields__ if name.endswith("_weight")}
        problems = [f"{name} must not be negative, found {value}" for name, value in weights.items() if not value >= 0]
        if not self.temperature > 0:
            problems.append(f"temperature must be positive, found {self.temperature}")
        if not problems and not any(value for name, value in weights.items() if name != "hard_weight"):
            problems.append(
                "expected soft_weight, hidden_weight or attention_weight above 0, found 0: the teacher has no effect"
            )
        if problems:
            raise TrainingError("; ".join(problems))

    @property
    def compares_layers(self) -> bool:
        """Whether layers are compared, which requires that both models read the same tokens."""
        return self.hidden_weight > 0 or self.attention_weight > 0


TASK_DISTILLATION = DistillationSettings()
"""Defaults for a fine-tuned teacher: its outputs and the labels have the same weight."""

CORPUS_DISTILLATION = DistillationSettings(soft_weight=5.0, hard_weight=2.0, hidden_weight=1.0)
"""Defaults for a corpus: DistilBERT's weights (Sanh et al., arXiv:1910.01108; their `distillation/README.md`)."""
