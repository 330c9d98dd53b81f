"""What a fine-tuning run is asked to do."""

from dataclasses import dataclass

from bert_models.errors import TrainingError

__all__ = ["PRECISIONS", "TrainSettings"]

PRECISIONS = ("auto", "fp32", "bf16")
"""`auto` takes bf16 mixed precision where this processor computes it and it measures faster."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The recipe of one fine-tuning run: AdamW, linear warm-up, linear decay to zero."""

    epochs: int = 3
    batch_size: int = 32
    lr: float = 1e-4
    """Peak learning rate."""
    warmup_ratio: float = 0.1
    """Share of all steps over which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """Decay of weight matrices; biases and LayerNorm parameters have none."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm."""
    max_tokens: int | None = None
    """Longest training sequence in tokens; by default the most that the checkpoint allows."""
    seed: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, found {value}"
            for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size))
            if value < 1
        ]
        if not self.lr > 0:
            problems.append(f"lr must be positive, found {self.lr}")
        if not 0 <= self.warmup_ratio <= 1:
            problems.append(f"warmup_ratio must lie in [0, 1], found {self.warmup_ratio}")
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie in [0, 2**32), found {self.seed}")
        if self.weight_decay < 0:
            problems.append(f"weight_decay must not be negative, found {self.weight_decay}")
        if not self.max_grad_norm > 0:
            problems.append(f"max_grad_norm must be positive, found {self.max_grad_norm}")
        if self.precision not in PRECISIONS:
            problems.append(f"precision must be one of {', '.join(PRECISIONS)}, found {self.precision!r}")
        if problems:
            raise TrainingError("; ".join(problems))
