"""The encoder's configuration: plain values that say which member of the family a model is."""

from dataclasses import dataclass

from bert_models.errors import ConfigError

__all__ = ["ACTIVATIONS", "EncoderConfig"]

ACTIVATIONS = ("gelu", "gelu_new", "relu")
"""Names of the feed-forward activations, as `hidden_act` spells them in a checkpoint's config."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Size and axes of variation of one encoder.

    A family (`bert_models.families`) maps these fields to the keys of a checkpoint's `config.json`.
    """

    family: str
    """Name of the family in `bert_models.families.FAMILIES`."""

    vocab_size: int
    """Rows of the token embedding."""

    hidden_size: int
    """Width of the residual stream."""

    num_layers: int
    """Number of encoder layers."""

    num_heads: int
    """Attention heads per layer; divides `hidden_size`."""

    intermediate_size: int
    """Width between the two projections of the feed-forward block."""

    max_positions: int
    """Rows of the position embedding, hence the longest sequence in tokens."""

    type_vocab_size: int
    """Rows of the segment embedding; 0 when the family has none."""

    activation: str = "gelu"
    """Feed-forward activation, one of `ACTIVATIONS`."""

    layer_norm_eps: float = 1e-12
    """Added to the variance inside every LayerNorm."""

    hidden_dropout: float = 0.1
    """Dropout probability after the embeddings and after each block's output projection."""

    attention_dropout: float = 0.1
    """Dropout probability on the attention weights."""

    classifier_dropout: float | None = None
    """Dropout probability before a head's last projection; `None` means `hidden_dropout`."""

    initializer_range: float = 0.02
    """Standard deviation of newly initialised weights."""

    pad_token_id: int = 0
    """Id that fills padded positions."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, found {value}"
            for name, value in (
                ("vocab_size", self.vocab_size),
                ("hidden_size", self.hidden_size),
                ("num_layers", self.num_layers),
                ("num_heads", self.num_heads),
                ("intermediate_size", self.intermediate_size),
                ("max_positions", self.max_positions),
            )
            if value < 1
        ]
        if self.type_vocab_size < 0:
            problems.append(f"type_vocab_size must not be negative, found {self.type_vocab_size}")
        if self.num_heads >= 1 and self.hidden_size % self.num_heads:
            problems.append(
                f"hidden_size must be a multiple of num_heads, found {self.hidden_size} and {self.num_heads}"
            )
        if self.activation not in ACTIVATIONS:
            problems.append(f"activation must be one of {', '.join(ACTIVATIONS)}, found {self.activation!r}")
        problems.extend(
            f"{name} must lie in [0, 1), found {value}"
            for name, value in (
                ("hidden_dropout", self.hidden_dropout),
                ("attention_dropout", self.attention_dropout),
                ("classifier_dropout", self.classifier_dropout or 0.0),
            )
            if not 0.0 <= value < 1.0
        )
        if not 0 <= self.pad_token_id < max(self.vocab_size, 1):
            problems.append(
                f"pad_token_id must be a row of the vocabulary of {self.vocab_size}, found {self.pad_token_id}"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads
