"""Configuration of a BERT-family encoder."""

from collections.abc import Iterator
from dataclasses import dataclass

from bert_models.errors import ConfigError
from bert_models.field_types import MAX_SIZE, type_problems
from bert_models.position_checks import position_problems, relative_position_problems
from bert_models.pruning_schedule import TokenPruning, pruning_problems

__all__ = [
    "ACTIVATIONS",
    "CLASSIFIER_POOLINGS",
    "MAX_LAYERS",
    "MAX_SIZE",
    "POSITION_ATTENTIONS",
    "POSITION_SCHEMES",
    "EncoderConfig",
]

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "tanh")
"""Supported activations, named like `hidden_act` in a checkpoint's `config.json`."""

POSITION_SCHEMES = ("absolute", "after_padding", "rotary", "relative")
"""How a token's position enters. `absolute`: an embedding for each position 0, 1, 2, … of the sequence (BERT).
`after_padding`: the same over the non-padding tokens alone, starting at `pad_token_id + 1`; padding gets `pad_token_id`
(RoBERTa, following fairseq). `rotary`: queries and keys are rotated by their position, without embeddings (RoPE, Su et
al., arXiv:2104.09864). `relative`: by `position_attention` alone (DeBERTa-v3)."""

POSITION_ATTENTIONS = ("c2p", "p2c", "c2p|p2c")
"""Scores of relative positions that attention adds (DeBERTa): `c2p` compares a query's content with the position of a
key, `p2c` a key's content with the position of a query."""

CLASSIFIER_POOLINGS = ("cls", "mean")
"""How the classification head reads a sequence: its first token, or the mean of its tokens."""

MAX_LAYERS = 1000
"""Most layers: 20 times as many as any published model has. A judgement."""

MAX_RELATIVE_BUCKETS = 256
"""Most buckets of relative positions: a quarter of them are single distances, and the last begins at 128 tokens."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and options of one encoder, validated on construction.

    `bert_models.families` maps these fields to the keys of a checkpoint's `config.json`.

    Raises:
        ConfigError: a value is out of range or unknown. The message lists all such values.
    """

    family: str
    """Name of the family in `bert_models.families.FAMILIES`."""

    vocab_size: int
    """Number of token embeddings."""

    hidden_size: int
    """Width of the hidden states (the residual stream)."""

    num_layers: int
    """Number of encoder layers."""

    num_heads: int
    """Attention heads per layer; divides `hidden_size`."""

    intermediate_size: int
    """Width of the feed-forward block between its two projections."""

    max_positions: int
    """Number of position embeddings, or of rotations. It bounds the sequence length, see `max_tokens`."""

    type_vocab_size: int
    """Number of segment embeddings; 0 if the family has none."""

    embedding_size: int | None = None
    """Width of the embeddings if a projection maps them to `hidden_size` (ALBERT, ELECTRA); `None` without one."""

    num_layer_groups: int | None = None
    """Number of parameter groups, each shared by consecutive layers (ALBERT); `None` if no layers share parameters."""

    positions: str = "absolute"
    """How positions enter, one of `POSITION_SCHEMES`."""

    rope_theta: float | None = None
    """Base of the rotations' wavelengths, set if and only if `positions` is `rotary`."""

    rope_linear_factor: float = 1.0
    """Divisor of all positions before the rotation (position interpolation, arXiv:2306.15595)."""

    rope_trained_tokens: int | None = None
    """Sequence length in tokens beyond which `rope_theta` grows (dynamic NTK scaling); `None` means never."""

    rope_dynamic_factor: float = 1.0
    """Growth of `rope_theta` beyond that length."""

    local_rope_theta: float | None = None
    """The same for layers with local attention; `None` means `rope_theta`."""

    local_layers: tuple[int, ...] = ()
    """Indices of the layers with local attention, which reads only keys near the query (ModernBERT)."""

    sliding_window: int | None = None
    """Largest distance in tokens from a query to a key in layers with local attention; `None` if there are none."""

    relative_buckets: int | None = None
    """Number of buckets of distances from query to key, each with a learnt bias of the attention scores of all layers
    (MPNet); `None` without such biases."""

    position_attention: str | None = None
    """Scores of relative positions that attention adds, one of `POSITION_ATTENTIONS`; `None` for none."""

    position_buckets: int | None = None
    """Number of logarithmic buckets of distances on either side of 0, for `position_attention`; `None` gives each
    distance an embedding of its own, up to `max_relative_positions`."""

    max_relative_positions: int | None = None
    """Distance at which relative positions end, for `position_attention`; `None` means `max_positions`."""

    share_position_projections: bool = False
    """Whether positions are projected to keys and queries by the weights that project contents."""

    norm_relative_positions: bool = False
    """Whether the embeddings of relative positions are normalised."""

    activation: str = "gelu"
    """Feed-forward activation, one of `ACTIVATIONS`."""

    gated_feed_forward: bool = False
    """Whether the feed-forward block multiplies activation(gate · x) by up · x (GLU variants, arXiv:2002.05202)."""

    norm_first: bool = False
    """Whether LayerNorm comes before each block (pre-norm) and once after the last layer. The first layer's attention
    reads the embeddings, which are normalised already (ModernBERT). `False`: after each block's residual (BERT)."""

    attention_bias: bool = True
    """Whether the projections of attention have biases."""

    up_bias: bool = True
    """Whether the first projections of the feed-forward block, gate and up, have biases."""

    down_bias: bool = True
    """Whether the last projection of the feed-forward block has a bias."""

    norm_bias: bool = True
    """Whether LayerNorms have biases."""

    head_transform: bool = False
    """Whether every head starts with dense → activation → LayerNorm, which else the fill-mask head alone does."""

    head_bias: bool = True
    """Whether the dense layer of heads has a bias."""

    decoder_bias: bool = True
    """Whether the fill-mask head's scores have biases."""

    classifier_pooling: str = "cls"
    """How the classification head reads a sequence, one of `CLASSIFIER_POOLINGS`."""

    classifier_activation: str = "tanh"
    """Activation between the two layers of the classification head."""

    prediction_activation: str | None = None
    """Activation of the masked-language-model head; `None` means `activation`."""

    layer_norm_eps: float = 1e-12
    """Epsilon added to the variance in every LayerNorm."""

    hidden_dropout: float = 0.1
    """Dropout probability after each block's output projection."""

    attention_dropout: float = 0.1
    """Dropout probability on the attention weights."""

    embedding_dropout: float | None = None
    """Dropout probability after the embeddings; `None` means `hidden_dropout`."""

    classifier_dropout: float | None = None
    """Dropout probability before a head's last projection; `None` means `hidden_dropout`."""

    token_classifier_dropout: bool = True
    """Whether the token-classification head has `classifier_dropout`; else `hidden_dropout` (DistilBERT, DeBERTa)."""

    classifier_input_dropout: bool = False
    """Whether the classification head has its dropout before its dense layer, too (RoBERTa, ELECTRA, MPNet)."""

    question_answering_dropout: float | None = 0.0
    """Dropout probability of the question-answering head; `None` means that of other heads."""

    next_sentence_dropout: bool = False
    """Whether the sentence-pair head has the dropout of other heads (ALBERT)."""

    attention_output_dropout: bool = True
    """Whether `hidden_dropout` acts after attention (not in DistilBERT)."""

    feed_forward_dropout: bool = True
    """Whether `hidden_dropout` acts after the feed-forward block (not in ALBERT)."""

    initializer_range: float = 0.02
    """Standard deviation of newly initialised weights."""

    pad_token_id: int = 0
    """Token id of padding."""

    token_pruning: TokenPruning | None = None
    """Which tokens leave after which layers; `None` if all stay."""

    def __post_init__(self) -> None:
        problems = type_problems(type(self), vars(self))
        if not problems:  # the others compare the values
            problems = [
                *self._size_problems(), *self._choice_problems(), *self._number_problems(), *position_problems(self),
                *relative_position_problems(self), *pruning_problems(self),
            ]  # fmt: skip
        if problems:
            raise ConfigError("; ".join(problems))

    def _size_problems(self) -> Iterator[str]:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions"):
            if (value := getattr(self, name)) < 1:
                yield f"{name} must be at least 1, found {value}"
            elif value > (limit := MAX_LAYERS if name == "num_layers" else MAX_SIZE):
                yield f"{name} must be at most {limit}, found {value}"
        if not 0 <= self.type_vocab_size <= MAX_SIZE:
            kind = "not be negative" if self.type_vocab_size < 0 else f"be at most {MAX_SIZE}"
            yield f"type_vocab_size must {kind}, found {self.type_vocab_size}"
        if self.num_heads >= 1 and self.hidden_size % self.num_heads:
            yield f"hidden_size must be a multiple of num_heads, found {self.hidden_size} and {self.num_heads}"
        if self.embedding_size is not None and not 1 <= self.embedding_size <= MAX_SIZE:
            yield f"embedding_size must lie in 1 to {MAX_SIZE}, found {self.embedding_size}"
        if self.relative_buckets is not None and not 4 <= self.relative_buckets <= MAX_RELATIVE_BUCKETS:
            yield f"relative_buckets must lie in 4 to {MAX_RELATIVE_BUCKETS}, found {self.relative_buckets}"
        if self.num_layer_groups is not None and not 1 <= self.num_layer_groups <= self.num_layers:
            yield f"num_layer_groups must lie in 1 to {self.num_layers}, found {self.num_layer_groups}"

    def _choice_problems(self) -> Iterator[str]:
        for name, value, choices in (
            ("activation", self.activation, ACTIVATIONS),
            ("classifier_activation", self.classifier_activation, ACTIVATIONS),
            ("prediction_activation", self.prediction_activation, (None, *ACTIVATIONS)),
            ("positions", self.positions, POSITION_SCHEMES),
            ("position_attention", self.position_attention, (None, *POSITION_ATTENTIONS)),
            ("classifier_pooling", self.classifier_pooling, CLASSIFIER_POOLINGS),
        ):
            if value not in choices:
                yield f"{name} must be one of {', '.join(filter(None, choices))}, found {value!r:.100}"

    def _number_problems(self) -> Iterator[str]:
        for part in ("hidden", "attention", "embedding", "classifier", "question_answering"):
            value = getattr(self, f"{part}_dropout") or 0.0
            if not 0.0 <= value < 1.0:
                yield f"{part}_dropout must lie in [0, 1), found {value}"
        for name in ("layer_norm_eps", "initializer_range"):
            if (value := getattr(self, name)) < 0:
                yield f"{name} must not be negative, found {value}"
        if not 0 <= self.pad_token_id < max(self.vocab_size, 1):
            yield f"pad_token_id must be an id below vocab_size {self.vocab_size}, found {self.pad_token_id}"
        elif self.max_positions >= 1 > self.max_tokens:
            yield f"max_positions must exceed pad_token_id {self.pad_token_id} by 2, found {self.max_positions}"

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def attention_scale(self) -> float:
        """Factor of attention's scores: 1 / √D, or less where the scores of positions are added (DeBERTa)."""
        parts = 1 + (0 if self.position_attention is None else len(self.position_attention.split("|")))
        return float((self.head_size * parts) ** -0.5)

    @property
    def relative_limit(self) -> int:
        """Distance at which relative positions end."""
        return self.max_positions if self.max_relative_positions is None else self.max_relative_positions

    @property
    def position_span(self) -> int:
        """Number of relative positions on either side of 0 that have an embedding."""
        return self.relative_limit if self.position_buckets is None else self.position_buckets

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables: `embedding_size`, or `hidden_size` without a projection."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def max_tokens(self) -> int:
        """Maximum sequence length in tokens that the position embeddings allow."""
        return self.max_positions - (self.pad_token_id + 1 if self.positions == "after_padding" else 0)

    @property
    def uses_segment_ids(self) -> bool:
        """Whether segment ids affect the output. A single segment embedding is a constant."""
        return self.type_vocab_size > 1
