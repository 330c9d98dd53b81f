"""Relative position bias: what attention adds to a score for the distance from its query to its key."""

import math

import torch
from torch import Tensor, nn

from bert_models.config import EncoderConfig

__all__ = ["MASKED_SCORE", "RelativePositionBias", "distance_buckets"]

MASKED_SCORE = -65504.0
"""Score of a masked key, the lowest number of float16: its attention weight becomes 0 in every precision, while a
sequence without any token has finite outputs."""

_LAST_BUCKET_TOKENS = 128
"""Distance in tokens from which on all keys share a bucket (MPNet's value, as in T5)."""


class RelativePositionBias(nn.Module):
    """A learnt bias per head and bucket of distances, which all layers share (T5, arXiv:1910.10683, section 2.1).

    Letters in shapes: B sequences in the batch, S tokens per sequence, A heads.
    """

    buckets: Tensor
    """Bucket of each distance, int64 [2 * max_tokens - 1]; the middle one is that of distance 0."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.relative_buckets is not None
        self.max_tokens = config.max_tokens
        self.table = nn.Embedding(config.relative_buckets, config.num_heads)
        distances = torch.arange(1 - self.max_tokens, self.max_tokens)
        self.register_buffer("buckets", distance_buckets(distances, config.relative_buckets), persistent=False)

    def forward(self, mask: Tensor) -> Tensor:
        """Combine a mask with the biases.

        Args:
            mask: bool [B, 1, S, S], True where a query may attend to a key.

        Returns:
            What is added to the attention scores, float [B, A, S, S].
        """
        tokens = mask.shape[-1]
        by_distance = self.table(self.buckets[self.max_tokens - tokens : self.max_tokens + tokens - 1]).T
        positions = torch.arange(tokens, device=mask.device)
        distances = positions[None, :] - positions[:, None]  # from query to key
        bias = by_distance.index_select(1, (distances + tokens - 1).flatten()).view(1, -1, tokens, tokens)
        return torch.where(mask, bias, MASKED_SCORE)


def distance_buckets(distances: Tensor, num_buckets: int) -> Tensor:
    """Return the bucket of each distance from a query to a key.

    The second half of the buckets is for keys after their query. Of each half, the first half is for single distances
    and the others are logarithmic, up to 128 tokens.

    Args:
        distances: position of the key minus that of the query, int64 of any shape.
        num_buckets: number of buckets.

    Returns:
        int64 of the same shape.
    """
    per_side = num_buckets // 2
    num_exact = per_side // 2
    sizes = distances.abs()
    share = torch.log(sizes.clamp(min=1).float() / num_exact) / math.log(_LAST_BUCKET_TOKENS / num_exact)
    logarithmic = (num_exact + (share * (per_side - num_exact)).long()).clamp(max=per_side - 1)
    return torch.where(sizes < num_exact, sizes, logarithmic) + (distances > 0) * per_side
