"""What a run of training is asked to do: what all have in common, and fine-tuning."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from bert_models.errors import TrainingError

__all__ = ["CLASS_WEIGHTS", "PRECISIONS", "OptimizationSettings", "TrainSettings"]

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
"""`auto` takes bf16 mixed precision where this processor computes it and it measures faster; fp16 needs CUDA."""

CLASS_WEIGHTS = ("balanced",)
"""`balanced` weights a class by the inverse of its frequency in the training file, 1 on average over the classes."""


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings:
    """How weights are learnt: AdamW, linear warm-up, linear decay to zero."""

    batch_size: int = 32
    accumulate: int = 1
    """Batches whose gradients are averaged for one step of the optimizer."""
    lr: float = 1e-4
    """Peak learning rate."""
    warmup_ratio: float = 0.1
    """Share of all steps over which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """Decay of weight matrices; biases and LayerNorm parameters have none."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm."""
    seed: int = 0
    precision: str = "auto"

    counts: ClassVar[tuple[str, ...]] = ("batch_size", "accumulate")
    """Fields that must be at least 1, or `None` where that is their default."""

    def __post_init__(self) -> None:
        if problems := list(self.problems()):
            raise TrainingError("; ".join(problems))

    def problems(self) -> Iterator[str]:
        """What makes no sense, and what was expected."""
        for name in self.counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} must be at least 1, found {value}"
        for name in ("lr", "max_grad_norm"):
            if not getattr(self, name) > 0:
                yield f"{name} must be positive, found {getattr(self, name)}"
        if not 0 <= self.warmup_ratio <= 1:
            yield f"warmup_ratio must lie in [0, 1], found {self.warmup_ratio}"
        if self.weight_decay < 0:
            yield f"weight_decay must not be negative, found {self.weight_decay}"
        if not 0 <= self.seed < 2**32:
            yield f"seed must lie in [0, 2**32), found {self.seed}"
        if self.precision not in PRECISIONS:
            yield f"precision must be one of {', '.join(PRECISIONS)}, found {self.precision!r}"


@dataclass(frozen=True, kw_only=True)
class TrainSettings(OptimizationSettings):
    """The recipe of one fine-tuning run."""

    epochs: int = 3
    layer_lr_decay: float = 1.0
    """Factor on the learning rate for every layer further below the head, see `parameter_groups`; 1 is off."""
    max_tokens: int | None = None
    """Longest training sequence in tokens; by default the most that the checkpoint allows."""
    patience: int | None = None
    """Stop after so many epochs without a better dev metric; by default all epochs are run."""
    label_smoothing: float = 0.0
    """Share of every target that is spread over all classes."""
    class_weights: str | None = None
    """How classes are weighted in the loss, of `CLASS_WEIGHTS`; by default all alike."""
    sort_by_length: bool = False
    """Batches of sequences of like length, in random order, instead of random batches: less padding."""
    gradient_checkpointing: bool = False
    """Compute the layers once more in the backward pass instead of keeping what they computed: less memory."""

    counts: ClassVar[tuple[str, ...]] = ("epochs", *OptimizationSettings.counts, "patience")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 < self.layer_lr_decay <= 1:
            yield f"layer_lr_decay must lie in (0, 1], found {self.layer_lr_decay}"
        if not 0 <= self.label_smoothing < 1:
            yield f"label_smoothing must lie in [0, 1), found {self.label_smoothing}"
        if self.class_weights is not None and self.class_weights not in CLASS_WEIGHTS:
            yield f"class_weights must be {' or '.join(CLASS_WEIGHTS)}, found {self.class_weights!r}"
