"""Building blocks of the encoder: embeddings, self-attention, feed-forward block, layer, and the stack of layers.

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, A heads, D head size, E embedding
width. Hidden states are floating point in the dtype of the parameters.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bert_models.config import EncoderConfig
from bert_models.relative_positions import RelativePositionBias

__all__ = ["Embeddings", "Encoder", "EncoderLayer", "FeedForward", "SelfAttention", "activation_function"]


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the element-wise function called `name`: one of `ACTIVATIONS`, or `identity`.

    `gelu` is the exact x·Φ(x); `gelu_new` is its tanh approximation (Hendrycks & Gimpel, arXiv:1606.08415).
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
    """Sum of token, position and segment embeddings, then LayerNorm, dropout and an optional projection E → H."""

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
        """Return the position ids, int64 [B, S], or [S] if all sequences share them."""
        if not self.after_padding:
            return torch.arange(input_ids.shape[1], device=input_ids.device)
        real = (input_ids != self.pad_token_id).long()
        return real.cumsum(dim=1) * real + self.pad_token_id

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Embed token ids.

        Args:
            input_ids: token ids, int64 [B, S].
            token_type_ids: segment ids, int64 [B, S]; `None` means segment 0.

        Returns:
            float [B, S, H].
        """
        summed = self.token(input_ids) + self.position(self._positions(input_ids))
        if self.segment is not None:
            varies = token_type_ids is not None and self.segment.num_embeddings > 1
            summed = summed + (self.segment(token_type_ids) if varies else self.segment.weight[0])
        embedded = self.dropout(self.norm(summed))
        return embedded if self.projection is None else self.projection(embedded)


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al., arXiv:1706.03762, section 3.2), without the residual."""

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
        """Reshape [B, S, H] to [B, A, S, D]."""
        return x.view(*x.shape[:2], self.num_heads, self.head_size).transpose(1, 2)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Compute softmax(Q Kᵀ / √D + mask) V per head, and project the concatenated heads.

        Args:
            hidden: float [B, S, H].
            mask: bool [B, 1, S, S], True where a query may attend to a key, or float [B, A, S, S] to add to the scores.

        Returns:
            float [B, S, H].
        """
        context = F.scaled_dot_product_attention(
            self._split_heads(self.query(hidden)),
            self._split_heads(self.key(hidden)),
            self._split_heads(self.value(hidden)),
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return self.output(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Position-wise feed-forward block `down(activation(up(x)))`, without the residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation_function(config.activation)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform every token's vector: float [B, S, H] → [B, S, H]."""
        return self.down(self.activation(self.up(hidden)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward block, each followed by residual and LayerNorm (post-norm, as in BERT)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Transform `hidden`, float [B, S, H], with the mask of `SelfAttention`, to float [B, S, H]."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, mask)))
        return self.feed_forward_norm(hidden + self.dropout(self.feed_forward(hidden)))


class Encoder(nn.Module):
    """Embeddings and a stack of layers: token ids in, one hidden state per token out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.position_bias = None if config.relative_buckets is None else RelativePositionBias(config)
        groups = config.num_layer_groups or config.num_layers
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(groups))
        self.order = [layer * groups // config.num_layers for layer in range(config.num_layers)]
        """The index into `layers` of every layer's parameters; layers of a group share them (ALBERT)."""
        self.checkpointing = False
        """Activation checkpointing: in training mode, keep each layer's input and recompute the rest in backward."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Encode token ids.

        Args:
            input_ids: token ids, int64 [B, S].
            attention_mask: 1 at real tokens, 0 at padding on either side, int64 [B, S].
            token_type_ids: segment ids, int64 [B, S]; `None` means segment 0.

        Returns:
            Hidden states of the last layer, float [B, S, H].
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        # All layers share one mask of full shape: the CPU kernel of the ONNX Attention operator does not broadcast a
        # [B, 1, 1, S] mask over the queries.
        batch, tokens = input_ids.shape
        mask = attention_mask.bool()[:, None, None, :].expand(batch, 1, tokens, tokens)
        if self.position_bias is not None:
            mask = self.position_bias(mask)
        for index in self.order:
            if self.checkpointing and self.training:
                hidden = checkpoint(self.layers[index], hidden, mask, use_reentrant=False)
            else:
                hidden = self.layers[index](hidden, mask)
        return hidden
