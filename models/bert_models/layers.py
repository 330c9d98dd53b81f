"""The encoder's building blocks, each a small module that says its shapes.

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, A heads, D head size.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bert_models.config import EncoderConfig

__all__ = ["Embeddings", "Encoder", "EncoderLayer", "FeedForward", "SelfAttention", "activation_function"]


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """The elementwise function behind a config's activation name.

    `gelu` is the exact form x·Φ(x); `gelu_new` is its tanh approximation (Hendrycks & Gimpel, arXiv:1606.08415).
    """
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": F.gelu,
        "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "tanh": torch.tanh,
        "identity": lambda x: x,
    }
    return functions[name]


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, then LayerNorm, dropout and, for narrow ones, a projection.

    E in shapes is the width of the embeddings.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.pad_token_id = config.pad_token_id
        self.after_padding = config.positions == "after_padding"
        self.token = nn.Embedding(config.vocab_size, width)
        self.position = nn.Embedding(config.max_positions, width)
        self.segment = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.projection = None if config.embedding_size is None else nn.Linear(width, config.hidden_size)

    def _positions(self, input_ids: Tensor) -> Tensor:
        """Rows of the position embedding: int64 [B, S], or [S] where all sequences have the same."""
        if not self.after_padding:
            return torch.arange(input_ids.shape[1], device=input_ids.device)
        real = (input_ids != self.pad_token_id).long()
        return real.cumsum(dim=1) * real + self.pad_token_id

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids, token_type_ids: int64 [B, S] → [B, S, H]. No segment ids means segment 0."""
        summed = self.token(input_ids) + self.position(self._positions(input_ids))
        if self.segment is not None:
            known = token_type_ids is not None and self.segment.num_embeddings > 1
            summed = summed + (self.segment(token_type_ids) if known else self.segment.weight[0])
        embedded = self.dropout(self.norm(summed))
        return embedded if self.projection is None else self.projection(embedded)


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al., arXiv:1706.03762, section 3.2) without its residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_size = config.head_size
        self.attention_dropout = config.attention_dropout
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, S, H] → [B, A, S, D]."""
        return x.view(*x.shape[:2], self.num_heads, self.head_size).transpose(1, 2)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: [B, S, H]; mask: bool [B, 1, S, S], True where a query may see a key → [B, S, H]."""
        context = F.scaled_dot_product_attention(
            self._split_heads(self.query(hidden)),
            self._split_heads(self.key(hidden)),
            self._split_heads(self.value(hidden)),
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return self.output(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two projections with an activation between, applied to each token on its own, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation_function(config.activation)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, S, H] → [B, S, H]."""
        return self.down(self.activation(self.up(hidden)))


class EncoderLayer(nn.Module):
    """Attention, then feed-forward; each adds its input and normalises the sum (post-norm, as BERT does)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: [B, S, H]; mask: bool [B, 1, S, S] → [B, S, H]."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, mask)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class Encoder(nn.Module):
    """Embeddings and a stack of layers: token ids in, one hidden vector per token out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        groups = config.num_layer_groups or config.num_layers
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(groups))
        self.order = [number * groups // config.num_layers for number in range(config.num_layers)]
        """For each layer, the entry of `layers` that holds its parameters."""
        self.checkpointing = False
        """In training mode, keep only what goes into each layer, and compute the rest again in the backward pass."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids, attention_mask, token_type_ids: int64 [B, S] → [B, S, H].

        `attention_mask` is 1 at real tokens and 0 at padding, which may lie on either side.
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        # Every layer shares one mask of full shape: the CPU kernel of the ONNX Attention operator
        # does not broadcast a [B, 1, 1, S] mask over the queries.
        batch, tokens = input_ids.shape
        mask = attention_mask.bool()[:, None, None, :].expand(batch, 1, tokens, tokens)
        for entry in self.order:
            if self.checkpointing and self.training:
                hidden = checkpoint(self.layers[entry], hidden, mask, use_reentrant=False)
            else:
                hidden = self.layers[entry](hidden, mask)
        return hidden
