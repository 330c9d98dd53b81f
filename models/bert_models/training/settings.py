"""Settings of a training run: what fine-tuning and pre-training share, and fine-tuning's own."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from bert_models.errors import TrainingError

__all__ = ["CLASS_WEIGHTS", "TRAINING_PRECISIONS", "UNKNOWN_LABELS", "OptimizationSettings", "TrainSettings"]

TRAINING_PRECISIONS = ("auto", "fp32", "bf16", "fp16")
"""Arithmetic of training.

`auto` takes bf16 mixed precision if this machine has bf16 instructions and a measured step is at least 10 % faster,
else fp32.
`fp16` (mixed precision with loss scaling, Micikevicius et al., arXiv:1710.03740) needs CUDA.
"""

CLASS_WEIGHTS = ("balanced",)
"""`balanced` weights a class by the inverse of its frequency in the training file, with a mean of 1 over the classes.
"""

UNKNOWN_LABELS = ("skip", "keep", "error")
"""Treatment of labels that dev rows have and no training row has.

`skip` leaves these rows out of the dev metrics, with a warning. `keep` makes them labels of the model, which never
learns them, so that these rows count as errors. `error` refuses to train.
"""


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings:
    """Settings of AdamW (arXiv:1711.05101) with linear warm-up and linear decay to zero, as BERT is fine-tuned.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    batch_size: int = 32
    """Sequences (or pairs) per batch and process."""
    gradient_accumulation_steps: int = field(default=1, metadata={"key": "accumulate"})
    """Batches whose gradients are averaged for one optimizer step."""
    lr: float = 1e-4
    """Peak learning rate."""
    warmup_ratio: float = 0.1
    """Fraction of all optimizer steps over which the learning rate rises from zero; 0.1 as in BERT's code."""
    weight_decay: float = 0.01
    """AdamW's decay of weight matrices; biases and LayerNorm parameters have none, as in BERT."""
    max_grad_norm: float = 1.0
    """Maximum L2 norm of the gradients; larger ones are scaled down to it (BERT's code clips at 1.0)."""
    seed: int = 0
    """Seed of new weights, batch order, dropout and masks, in [0, 2**32)."""
    precision: str = "auto"
    """One of `TRAINING_PRECISIONS`."""

    count_fields: ClassVar[tuple[str, ...]] = ("batch_size", "gradient_accumulation_steps")
    """Fields that must be at least 1, or `None` where that is their default."""

    def __post_init__(self) -> None:
        if problems := list(self.problems()):
            raise TrainingError("; ".join(problems))

    def problems(self) -> Iterator[str]:
        """Yield a message for every value that is out of range: the field, what was expected, what was found."""
        for name in self.count_fields:
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
        if self.precision not in TRAINING_PRECISIONS:
            yield f"precision must be one of {', '.join(TRAINING_PRECISIONS)}, found {self.precision!r}"

    def to_dict(self) -> dict[str, Any]:
        """Return the values under the keys of reports and saved runs: field names, or their `metadata["key"]`."""
        return {str(f.metadata.get("key", f.name)): getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class TrainSettings(OptimizationSettings):
    """Settings of one fine-tuning run.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    epochs: int = 3
    """Passes over the training file (BERT's fine-tuning used 2 to 4, arXiv:1810.04805, appendix A.3)."""
    layer_lr_decay: float = 1.0
    """Factor on the learning rate per layer below the head (arXiv:1801.06146), see `parameter_groups`; 1 is off."""
    max_tokens: int | None = None
    """Maximum tokens of a training sequence; by default the maximum of the checkpoint."""
    patience: int | None = None
    """Epochs without a better dev metric after which training stops; by default it runs all epochs."""
    metric: str | None = None
    """Dev metric that decides which epoch is best, see `selection`; by default the task's, or macro F1 of a classifier
    with balanced class weights."""
    label_smoothing: float = 0.0
    """Fraction of each target's probability spread evenly over all classes (Szegedy et al., arXiv:1512.00567)."""
    class_weights: str | None = None
    """One of `CLASS_WEIGHTS`: how classes are weighted in the loss; by default all alike."""
    query_flops: float = 5e-5
    """sparse-embedding: weight of the regularizer of queries, see `sparse_ranking`; more gives fewer tokens."""
    document_flops: float = 3e-5
    """sparse-embedding: weight of the regularizer of the texts that are found."""
    sort_by_length: bool = False
    """Group sequences of similar length into batches, which saves padding; the order of batches stays random."""
    dropout: float | None = None
    """Dropout probability everywhere, of attention too, in place of those of the checkpoint, which it keeps."""
    freeze_embeddings: bool = False
    """Do not train the token embeddings: faster, and words that the training file lacks stay beside the others."""
    gradient_checkpointing: bool = False
    """Recompute the layers in the backward pass instead of storing their activations (Chen et al., arXiv:1604.06174).
    """

    dev_fraction: float | None = field(default=None, metadata={"key": "dev_share"})
    """Without a dev file, the fraction of the training rows that is held out; by default 0.1, at most 2,000 rows."""
    unknown_labels: str = "skip"
    """One of `UNKNOWN_LABELS`."""

    count_fields: ClassVar[tuple[str, ...]] = ("epochs", *OptimizationSettings.count_fields, "patience")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 < self.layer_lr_decay <= 1:
            yield f"layer_lr_decay must lie in (0, 1], found {self.layer_lr_decay}"
        if not 0 <= self.label_smoothing < 1:
            yield f"label_smoothing must lie in [0, 1), found {self.label_smoothing}"
        if self.dropout is not None and not 0 <= self.dropout < 1:
            yield f"dropout must lie in [0, 1), found {self.dropout}"
        for name in ("query_flops", "document_flops"):
            if not 0 <= getattr(self, name) < float("inf"):
                yield f"{name} must not be negative, found {getattr(self, name)}"
        if self.class_weights is not None and self.class_weights not in CLASS_WEIGHTS:
            yield f"class_weights must be {' or '.join(CLASS_WEIGHTS)}, found {self.class_weights!r}"
        if self.dev_fraction is not None and not 0 < self.dev_fraction < 1:
            yield f"dev_fraction must lie between 0 and 1, found {self.dev_fraction}"
        if self.unknown_labels not in UNKNOWN_LABELS:
            yield f"unknown_labels must be one of {', '.join(UNKNOWN_LABELS)}, found {self.unknown_labels!r}"
