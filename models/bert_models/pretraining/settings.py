"""Settings of a pre-training run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from bert_models.pretraining.batches import BatchSettings
from bert_models.pretraining.masking import MaskingSettings
from bert_models.training.settings import OptimizationSettings

__all__ = ["PretrainSettings"]


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(OptimizationSettings):
    """Settings of one pre-training run; masking follows BERT (arXiv:1810.04805), or ELECTRA for `rtd`.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    objective: str = "mlm"
    """One of `bert_models.pretraining.OBJECTIVES`."""
    steps: int = 10_000
    """Optimizer steps."""
    lr: float = 5e-4
    """Peak learning rate (ELECTRA-small's, arXiv:2003.10555, appendix A)."""
    max_tokens: int = 128
    """Maximum tokens of a sequence, special tokens included."""
    mlm_probability: float = field(default=0.15, metadata={"key": "mask_share"})
    """Fraction of the tokens that are predicted."""
    whole_words: bool = False
    """Mask all tokens of a word together (whole-word masking)."""
    static_masking: bool = False
    """Reuse the first epoch's sequences and masks in every epoch; by default both are drawn anew (RoBERTa's dynamic
    masking, arXiv:1907.11692)."""
    dev_fraction: float = field(default=0.01, metadata={"key": "dev_share"})
    """Fraction of the tokens that are held out for evaluation, in whole documents; see `split_documents`."""
    eval_every: int = 500
    """Optimizer steps between two evaluations on the held-out documents; each also saves the state of the run."""

    count_fields: ClassVar[tuple[str, ...]] = ("steps", *OptimizationSettings.count_fields, "eval_every")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch_settings()

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 < self.dev_fraction < 1:
            yield f"dev_fraction must lie between 0 and 1, found {self.dev_fraction}"

    def batch_settings(self) -> BatchSettings:
        """Return the settings of the batches.

        Raises:
            TrainingError: a value is out of range.
        """
        # ELECTRA's generator gets the mask at every token that it predicts (arXiv:2003.10555, section 2).
        replacements = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if self.objective == "rtd" else {}
        masking = MaskingSettings(mlm_probability=self.mlm_probability, whole_words=self.whole_words, **replacements)
        return BatchSettings(
            objective=self.objective,
            max_tokens=self.max_tokens,
            batch_size=self.batch_size,
            masking=masking,
            static_masking=self.static_masking,
            seed=self.seed,
        )
