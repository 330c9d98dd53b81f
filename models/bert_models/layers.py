"""Building blocks of the encoder: embeddings, self-attention, feed-forward block, layer, and the stack of layers.

Letters in shapes: B sequences in the batch, S tokens per sequence, H hidden size, A heads, D head size, E embedding
width. Hidden states are floating point in the dtype of the parameters.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bert_models.config import EncoderConfig
from bert_models.disentangled_attention import PositionScores, PositionTable, RelativePositions
from bert_models.relative_positions import RelativePositionBias
from bert_models.rotary import Rotation, build_rotary, rotate
from bert_models.token_pruning import keep_tokens, take_tokens

__all__ = ["Embeddings", "Encoder", "EncoderLayer", "FeedForward", "SelfAttention", "activation_function", "layer_norm"]


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the element-wise function called `name`: one of `ACTIVATIONS`, or `identity`.

    `gelu` is the exact x·Φ(x); `gelu_new` is its tanh approximation (Hendrycks & Gimpel, arXiv:1606.08415).
    """
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": F.gelu,
        "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
        "identity": lambda x: x,
    }
    return functions[name]


def layer_norm(config: EncoderConfig, width: int | None = None) -> nn.LayerNorm:
    """Return a new LayerNorm over `width` channels, by default `config.hidden_size`."""
    return nn.LayerNorm(width or config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, then LayerNorm, dropout and an optional projection E → H.

    Rotary positions have no embeddings, and not every family has segments.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.pad_token_id = config.pad_token_id
        self.after_padding = config.positions == "after_padding"
        self.token = nn.Embedding(config.vocab_size, width)
        has_table = config.positions not in ("rotary", "relative")
        self.position = nn.Embedding(config.max_positions, width) if has_table else None
        self.segment = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = layer_norm(config, width)
        dropout = config.hidden_dropout if config.embedding_dropout is None else config.embedding_dropout
        self.dropout = nn.Dropout(dropout)
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
        summed = self.token(input_ids)
        if self.position is not None:
            summed = summed + self.position(self._positions(input_ids))
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
        width, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.positions = None if config.position_attention is None else PositionScores(config)
        self.scale = None if config.position_attention is None else config.attention_scale
        """Factor of the scores; `None` means 1 / √D."""

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape [B, S, H] to [B, A, S, D]."""
        return x.view(*x.shape[:2], self.num_heads, self.head_size).transpose(1, 2)

    def forward(
        self, hidden: Tensor, mask: Tensor, rotation: Rotation | None = None, table: PositionTable | None = None
    ) -> Tensor:
        """Compute softmax(Q Kᵀ · scale + mask) V per head, and project the concatenated heads.

        Args:
            hidden: float [B, S, H].
            mask: bool [B, 1, S, S], True where a query may attend to a key, or float [B, A, S, S] to add to the scores.
            rotation: by which queries and keys are rotated, if they are.
            table: embeddings of relative positions, whose scores are added to the mask, if there are any.

        Returns:
            float [B, S, H].
        """
        query, key = self._split_heads(self.query(hidden)), self._split_heads(self.key(hidden))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if self.positions is not None and table is not None:
            mask = self.positions(query, key, mask, table, (self.query, self.key))
        context = F.scaled_dot_product_attention(
            query,
            key,
            self._split_heads(self.value(hidden)),
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            scale=self.scale,
        )
        return self.output(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Position-wise `down(activation(up(x)))`, or with a gate `down(activation(gate(x)) * up(x))`, without residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate = nn.Linear(width, inner, bias=config.up_bias) if config.gated_feed_forward else None
        self.up = nn.Linear(width, inner, bias=config.up_bias)
        self.activation = activation_function(config.activation)
        self.down = nn.Linear(inner, width, bias=config.down_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform every token's vector: float [B, S, H] → [B, S, H]."""
        if self.gate is None:
            return self.down(self.activation(self.up(hidden)))
        return self.down(self.activation(self.gate(hidden)) * self.up(hidden))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward block, each with a residual, and a LayerNorm after it or before the block.

    Args:
        config: `norm_first` chooses between post-norm, as in BERT, and pre-norm (Xiong et al., arXiv:2002.04745).
        index: the layer's number from 0.
    """

    def __init__(self, config: EncoderConfig, index: int = 0) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.is_local = index in config.local_layers
        """Whether attention is local."""
        self.attention = SelfAttention(config)
        self.attention_norm = nn.Identity() if config.norm_first and index == 0 else layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        dropout = nn.Dropout(config.hidden_dropout)
        self.attention_dropout = dropout if config.attention_output_dropout else nn.Identity()
        self.feed_forward_dropout = dropout if config.feed_forward_dropout else nn.Identity()

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor,
        rotation: Rotation | None = None,
        table: PositionTable | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """Transform `hidden`, float [B, S, H], with the other arguments of `SelfAttention`, to float [B, S, H].

        Of a post-norm layer, the tokens `kept`, int64 [B, K], alone may stay after its attention: [B, K, H].
        """
        if self.norm_first:
            hidden = hidden + self.attention_dropout(self.attention(self.attention_norm(hidden), mask, rotation, table))
            return hidden + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(hidden)))
        attended = self.attention(hidden, mask, rotation, table)
        if kept is not None:
            hidden, attended = take_tokens(hidden, kept), take_tokens(attended, kept)
        hidden = self.attention_norm(hidden + self.attention_dropout(attended))
        return self.feed_forward_norm(hidden + self.feed_forward_dropout(self.feed_forward(hidden)))


class AttentionContext(NamedTuple):
    """Inputs of attention besides the hidden states; the same for all layers of one kind."""

    mask: Tensor
    """The mask of `SelfAttention`."""
    rotation: Rotation | None
    """By which queries and keys are rotated, if they are."""
    table: PositionTable | None = None
    """Embeddings of relative positions, if there are any."""


class Encoder(nn.Module):
    """Embeddings and a stack of layers: token ids in, one hidden state per token out."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.position_bias = None if config.relative_buckets is None else RelativePositionBias(config)
        self.relative_positions = None if config.position_attention is None else RelativePositions(config)
        self.rotary = build_rotary(config)
        local_theta = config.local_rope_theta or config.rope_theta
        self.local_rotary = build_rotary(replace(config, rope_theta=local_theta)) if config.local_layers else None
        self.sliding_window = config.sliding_window
        groups = config.num_layer_groups or config.num_layers
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(groups))
        self.final_norm = layer_norm(config) if config.norm_first else None
        self.order = [layer * groups // config.num_layers for layer in range(config.num_layers)]
        """The index into `layers` of every layer's parameters; layers of a group share them (ALBERT)."""
        self.token_pruning = config.token_pruning
        self.checkpointing = False
        """Activation checkpointing: in training mode, keep each layer's input and recompute the rest in backward."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Encode token ids.

        Args:
            input_ids: token ids, int64 [B, S].
            attention_mask: 1 at real tokens, 0 at padding on either side, int64 [B, S].
            token_type_ids: segment ids, int64 [B, S]; `None` means segment 0.

        Returns:
            Hidden states after the last layer, float [B, S, H], or of the tokens that are left by then.
        """
        (last,) = deque(self.hidden_states(input_ids, attention_mask, token_type_ids), maxlen=1)
        return last

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the embeddings and each layer's output, float [B, S, H], as transformers' `output_hidden_states` does.

        The last one has gone through the final LayerNorm of pre-norm encoders. A layer is computed when its output is
        asked for.

        Args:
            input_ids: see `forward`.
            attention_mask: see `forward`.
            token_type_ids: see `forward`.
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        yield hidden
        full = self._full_attention(attention_mask)
        local = None if self.sliding_window is None else self._local_attention(full.mask, self.sliding_window)
        mask, percents = attention_mask, {} if self.token_pruning is None else self.token_pruning.percents
        for number, index in enumerate(self.order, start=1):
            layer: Any = self.layers[index]
            context = local if local is not None and layer.is_local else full
            kept = None
            if number in percents:
                kept, mask = keep_tokens(layer.attention, hidden, mask, attention_mask, percents[number])
            if self.checkpointing and self.training:
                hidden = checkpoint(layer, hidden, *context, kept, use_reentrant=False)
            else:
                hidden = layer(hidden, *context, kept)
            full = full if kept is None else self._full_attention(mask)
            is_last = number == len(self.order)
            yield self.final_norm(hidden) if is_last and self.final_norm is not None else hidden

    def _full_attention(self, attention_mask: Tensor) -> AttentionContext:
        """Return what attention to all keys reads."""
        # All layers share one mask of full shape: the CPU kernel of the ONNX Attention operator does not broadcast a
        # [B, 1, 1, S] mask over the queries.
        batch, tokens = attention_mask.shape
        mask = attention_mask.bool()[:, None, None, :].expand(batch, 1, tokens, tokens)
        if self.position_bias is not None:
            mask = self.position_bias(mask)
        table = None if self.relative_positions is None else self.relative_positions(tokens)
        return AttentionContext(mask, None if self.rotary is None else self.rotary(tokens), table)

    def _local_attention(self, mask: Tensor, window: int) -> AttentionContext:
        """Return what attention to the keys within `window` tokens of the query reads, given the mask of all keys."""
        tokens = mask.shape[-1]
        positions = torch.arange(tokens, device=mask.device)
        near = (positions[None, :] - positions[:, None]).abs() <= window
        return AttentionContext(mask & near, None if self.local_rotary is None else self.local_rotary(tokens))
