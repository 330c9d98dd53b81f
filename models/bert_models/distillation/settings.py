"""What a distillation is asked to do."""

from dataclasses import dataclass

from bert_models.errors import TrainingError

__all__ = ["CORPUS_DISTILLATION", "TASK_DISTILLATION", "DistillationSettings"]


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """What a student learns from: the weighted sum of up to four losses (Hinton et al., arXiv:1503.02531)."""

    temperature: float = 2.0
    """Divides the logits of both before their distributions are compared; the loss is scaled by its square."""
    soft_weight: float = 1.0
    """Of the difference between the teacher's answers and the student's."""
    hard_weight: float = 1.0
    """Of the loss on labels, or on masked tokens; with 0, training data need no labels."""
    hidden_weight: float = 0.0
    """Of the cosine distance between hidden states, after every layer (tasks) or the last one (corpora)."""
    attention_weight: float = 0.0
    """Of the divergence between the attention of the last layers (Wang et al., arXiv:2002.10957)."""

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in self.__dataclass_fields__ if name.endswith("_weight")}
        problems = [f"{name} must not be negative, found {value}" for name, value in weights.items() if not value >= 0]
        if not self.temperature > 0:
            problems.append(f"temperature must be positive, found {self.temperature}")
        if not problems and not any(value for name, value in weights.items() if name != "hard_weight"):
            problems.append("soft_weight, hidden_weight and attention_weight are all 0: nothing is learnt of a teacher")
        if problems:
            raise TrainingError("; ".join(problems))

    @property
    def compares_layers(self) -> bool:
        """Whether more than the teacher's answers are needed: its layers, for the same tokens."""
        return self.hidden_weight > 0 or self.attention_weight > 0


TASK_DISTILLATION = DistillationSettings()
"""Where a fine-tuned teacher is distilled: its answers and the labels count the same."""

CORPUS_DISTILLATION = DistillationSettings(soft_weight=5.0, hard_weight=2.0, hidden_weight=1.0)
"""The weights with which DistilBERT was trained (its authors' `distillation/README.md`; Sanh et al., arXiv:1910.01108).
"""
