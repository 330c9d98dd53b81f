"""The encoder's configuration: plain values that say which member of the family a model is."""

from dataclasses import dataclass

from bert_models.errors import ConfigError

__all__ = ["ACTIVATIONS", "POSITION_SCHEMES", "EncoderConfig"]

ACTIVATIONS = ("gelu", "gelu_new", "relu", "tanh")
"""Names of activations, as `hidden_act` spells them in a checkpoint's config."""

POSITION_SCHEMES = ("absolute", "after_padding")
"""How a token finds its row of the position embedding: by its place in the row (BERT), or by its place among the
tokens that are no padding, counted from `pad_token_id + 1` (RoBERTa, as fairseq numbered them)."""


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

    embedding_size: int | None = None
    """Width of the embeddings where a projection brings them to `hidden_size` (ALBERT, ELECTRA); `None` without one."""

    num_layer_groups: int | None = None
    """Sets of parameters that the layers share, consecutive layers the same (ALBERT); `None` for a set per layer."""

    positions: str = "absolute"
    """One of `POSITION_SCHEMES`."""

    activation: str = "gelu"
    """Feed-forward activation, one of `ACTIVATIONS`."""

    classifier_activation: str = "tanh"
    """Activation between the two layers of the classification head."""

    prediction_activation: str | None = None
    """Activation of the masked-language head; `None` means `activation`."""

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
        if self.embedding_size is not None and self.embedding_size < 1:
            problems.append(f"embedding_size must be at least 1, found {self.embedding_size}")
        if self.num_layer_groups is not None and not 1 <= self.num_layer_groups <= self.num_layers:
            problems.append(f"num_layer_groups must lie in 1 to {self.num_layers}, found {self.num_layer_groups}")
        problems.extend(
            f"{name} must be one of {', '.join(choices)}, found {value!r}"
            for name, value, choices in (
                ("activation", self.activation, ACTIVATIONS),
                ("classifier_activation", self.classifier_activation, ACTIVATIONS),
                ("prediction_activation", self.prediction_activation or self.activation, ACTIVATIONS),
                ("positions", self.positions, POSITION_SCHEMES),
            )
            if value not in choices
        )
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

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, projected or not."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def max_tokens(self) -> int:
        """Longest sequence that has positions."""
        return self.max_positions - (self.pad_token_id + 1 if self.positions == "after_padding" else 0)

    @property
    def uses_segment_ids(self) -> bool:
        """Whether segment ids change the output; a single segment is a constant."""
        return self.type_vocab_size > 1
