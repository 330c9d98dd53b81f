"""The goal and the settings of a search."""

from dataclasses import dataclass
from typing import Any

from bert_models.distillation import DistillationSettings
from bert_models.errors import CompressionError
from bert_models.training import TrainSettings

__all__ = ["PRUNINGS", "VOCABULARIES", "CompressionSettings", "Goal"]

VOCABULARIES = ("keep", "cut")
"""Whether all pieces of the vocabulary stay, or those that the texts given use."""

PRUNINGS = ("auto", "none")
"""Whether candidates may prune tokens, where the task and the length of the texts allow it."""

_MIN_BUDGET_S = 60.0


@dataclass(frozen=True)
class Goal:
    """The user's rule: a least speed-up with the smallest loss, the highest speed with at most some loss, or both."""

    speedup: float | None = None
    """Least speed over that of the uncompressed INT8 model."""
    max_drop: float | None = None
    """Largest loss of the task metric, in percent of the uncompressed INT8 model's."""

    def __post_init__(self) -> None:
        if self.speedup is None and self.max_drop is None:
            raise CompressionError("expected a speed-up, a maximum drop or both (--speedup X, --max-drop PCT)")
        if self.speedup is not None and not 1 < self.speedup < 1000:
            raise CompressionError(f"expected a speed-up above 1, such as 2, found {self.speedup:g}")
        if self.max_drop is not None and not 0 <= self.max_drop < 100:
            raise CompressionError(f"expected a maximum drop of 0 to 100 percent, found {self.max_drop:g}")

    def __str__(self) -> str:
        if self.speedup is not None:
            limit = "" if self.max_drop is None else f", of at most {self.max_drop:g} %"
            return f"at least {self.speedup:g}× as fast, with the least loss{limit}"
        return f"as fast as possible, with at most {self.max_drop:g} % loss"


@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """How a search works."""

    budget_s: float = 3600.0
    """Seconds for the whole search."""
    gate_fraction: float = 0.5
    """Fraction of the dev rows that only the gate sees."""
    vocabulary: str = "keep"
    """A value of `VOCABULARIES`."""
    prune_tokens: str = "auto"
    """A value of `PRUNINGS`."""
    max_tokens: int | None = None
    """Maximum length of a sequence in tokens; by default the checkpoint's."""
    fit_length: bool = False
    """Whether to lower it to what 99 % of the search's rows need."""
    lr: float = 3e-4
    """Peak learning rate of each training: with it, half of BANKING77's layers came within 0.1 % of their teacher
    (bench/results/distillation.json)."""
    hidden_weight: float = 1.0
    """Weight of the distance between the hidden states of a candidate and the uncompressed model's, see
    `DistillationSettings`."""
    copies: int | None = None
    """Copies of each training row, in which words are replaced by similar ones; by default see
    `augmentation.num_copies`."""
    batch_size: int = 32
    """Sequences per batch."""
    seed: int = 0
    """Seed of the split and of the training."""

    def __post_init__(self) -> None:
        if not _MIN_BUDGET_S <= self.budget_s < float("inf"):
            raise CompressionError(f"expected a budget of at least 1m, found {self.budget_s:g} seconds")
        if self.fit_length and self.max_tokens is not None:
            raise CompressionError(f"expected either max_tokens or fit_length, found both ({self.max_tokens})")
        if not 0 < self.gate_fraction < 1:
            raise CompressionError(f"expected a share of dev rows between 0 and 1, found {self.gate_fraction:g}")
        if self.vocabulary not in VOCABULARIES:
            raise CompressionError(f"expected a vocabulary of {' or '.join(VOCABULARIES)}, found {self.vocabulary!r}")
        if self.prune_tokens not in PRUNINGS:
            raise CompressionError(f"expected prune_tokens of {' or '.join(PRUNINGS)}, found {self.prune_tokens!r}")
        if self.copies is not None and self.copies < 0:
            raise CompressionError(f"expected a number of copies of each training row, 0 or more, found {self.copies}")
        self.training(epochs=1)
        self.losses(labelled=True)

    def training(self, epochs: int) -> TrainSettings:
        """Return the settings of a training.

        Without dropout, and without training the token embeddings, which were fine-tuned with the uncompressed model:
        three epochs on 16,000 phrases of SST-2 took two layers of MiniLM-L6 to an accuracy of 0.938 on others in 104
        seconds, where 0.1 of dropout and trained embeddings took it to 0.927 in 182.

        Raises:
            TrainingError: a value is out of range.
        """
        return TrainSettings(
            epochs=epochs, lr=self.lr, batch_size=self.batch_size, seed=self.seed, max_tokens=self.max_tokens,
            sort_by_length=True, dropout=0.0, freeze_embeddings=True,
        )  # fmt: skip

    def losses(self, *, labelled: bool) -> DistillationSettings:
        """Return the losses of a training.

        Args:
            labelled: whether all rows have labels.

        Raises:
            TrainingError: a weight is negative.
        """
        return DistillationSettings(hard_weight=1.0 if labelled else 0.0, hidden_weight=self.hidden_weight)

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for a search to go on; it may go on with another budget."""
        return {name: value for name, value in vars(self).items() if name != "budget_s"}
