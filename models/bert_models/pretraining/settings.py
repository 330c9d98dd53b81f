"""What a pre-training run is asked to do."""

from dataclasses import dataclass

from bert_models.errors import TrainingError
from bert_models.pretraining.batches import BatchSettings
from bert_models.pretraining.masking import MaskingSettings
from bert_models.training.settings import PRECISIONS

__all__ = ["PretrainSettings"]


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """The recipe of one run: AdamW, linear warm-up, linear decay to zero."""

    objective: str = "mlm"
    """One of `bert_models.pretraining.OBJECTIVES`."""
    steps: int = 10_000
    batch_size: int = 32
    accumulate: int = 1
    """Batches whose gradients make one step."""
    lr: float = 5e-4
    """Peak learning rate."""
    warmup_ratio: float = 0.1
    """Share of all steps over which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """Decay of weight matrices; biases and LayerNorm parameters have none."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this L2 norm."""
    max_tokens: int = 128
    """Longest sequence in tokens."""
    mask_share: float = 0.15
    """Share of the tokens that are predicted."""
    whole_words: bool = False
    static_masking: bool = False
    dev_share: float = 0.01
    """Share of the documents that are held out."""
    eval_every: int = 500
    """Steps between two measurements on the documents that are held out, each of which saves the state."""
    seed: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, found {getattr(self, name)}"
            for name in ("steps", "accumulate", "eval_every")
            if getattr(self, name) < 1
        ]
        problems += [
            f"{name} must be positive, found {getattr(self, name)}"
            for name in ("lr", "max_grad_norm")
            if not getattr(self, name) > 0
        ]
        if not 0 <= self.warmup_ratio <= 1:
            problems.append(f"warmup_ratio must lie in [0, 1], found {self.warmup_ratio}")
        if self.weight_decay < 0:
            problems.append(f"weight_decay must not be negative, found {self.weight_decay}")
        if not 0 < self.dev_share < 1:
            problems.append(f"dev_share must lie between 0 and 1, found {self.dev_share}")
        if self.precision not in PRECISIONS:
            problems.append(f"precision must be one of {', '.join(PRECISIONS)}, found {self.precision!r}")
        if problems:
            raise TrainingError("; ".join(problems))
        self.batches()

    def batches(self) -> BatchSettings:
        """What is made of the corpus; raises `TrainingError` for settings that make no sense."""
        # ELECTRA's generator sees nothing but masks where it is asked.
        kept = {"masked": 1.0, "replaced": 0.0} if self.objective == "rtd" else {}
        masking = MaskingSettings(share=self.mask_share, whole_words=self.whole_words, **kept)
        return BatchSettings(
            objective=self.objective,
            max_tokens=self.max_tokens,
            batch_size=self.batch_size,
            masking=masking,
            static=self.static_masking,
            seed=self.seed,
        )
