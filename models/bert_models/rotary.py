"""Rotary position embeddings: queries and keys are rotated by an angle that grows with their position."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["RotaryEmbedding", "Rotation", "rotate"]


class Rotation(NamedTuple):
    """Cosine and sine of the angle of every position and pair of channels, float [S, D / 2] each."""

    cos: Tensor
    sin: Tensor


class RotaryEmbedding(nn.Module):
    """The rotations of the first positions (RoPE, Su et al., arXiv:2104.09864, section 3.2.2).

    At position p, channels i and i + D / 2 of a head of D channels are a point in the plane, which turns by the angle
    p · theta^(-2i / D).

    Args:
        max_tokens: number of positions.
        head_size: channels D of a head, even.
        theta: base of the wavelengths.
    """

    cos: Tensor
    """float [max_tokens, D / 2]"""
    sin: Tensor
    """float [max_tokens, D / 2]"""

    def __init__(self, max_tokens: int, head_size: int, theta: float) -> None:
        super().__init__()
        frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angles = torch.outer(torch.arange(max_tokens, dtype=torch.float32), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: int) -> Rotation:
        """Return the rotations of a sequence of `tokens` tokens."""
        return Rotation(self.cos[:tokens], self.sin[:tokens])


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the queries or keys of every head by their position.

    Args:
        x: float [B, A, S, D].
        rotation: of the S positions.

    Returns:
        float [B, A, S, D].
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
