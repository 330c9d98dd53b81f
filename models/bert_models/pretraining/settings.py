"""What a pre-training run is asked to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from bert_models.pretraining.batches import BatchSettings
from bert_models.pretraining.masking import MaskingSettings
from bert_models.training.settings import OptimizationSettings

__all__ = ["PretrainSettings"]


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(OptimizationSettings):
    """The recipe of one run."""

    objective: str = "mlm"
    """One of `bert_models.pretraining.OBJECTIVES`."""
    steps: int = 10_000
    lr: float = 5e-4
    """Peak learning rate."""
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

    counts: ClassVar[tuple[str, ...]] = ("steps", *OptimizationSettings.counts, "eval_every")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches()

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 < self.dev_share < 1:
            yield f"dev_share must lie between 0 and 1, found {self.dev_share}"

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
