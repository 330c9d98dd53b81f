"""Rotary position embeddings: queries and keys are rotated by an angle that grows with their position."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bert_models.config import EncoderConfig

__all__ = ["DynamicRotaryEmbedding", "RotaryEmbedding", "Rotation", "build_rotary", "rotate"]


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
        linear_factor: what positions are divided by.
    """

    cos: Tensor
    """float [max_tokens, D / 2]"""
    sin: Tensor
    """float [max_tokens, D / 2]"""

    def __init__(self, max_tokens: int, head_size: int, theta: float, linear_factor: float = 1.0) -> None:
        super().__init__()
        frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size) / linear_factor
        angles = torch.outer(torch.arange(max_tokens, dtype=torch.float32), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: int) -> Rotation:
        """Return the rotations of a sequence of `tokens` tokens."""
        return Rotation(self.cos[:tokens], self.sin[:tokens])


class DynamicRotaryEmbedding(nn.Module):
    """Rotations whose base grows with the length S of a sequence longer than T tokens (dynamic NTK scaling).

    With a factor f, theta becomes theta · (f · S / T - (f - 1))^(D / (D - 2)), where S includes padding.

    Args:
        trained_tokens: T, the length up to which the base is `theta`.
        head_size: channels D of a head, even and at least 4.
        theta: base of the wavelengths.
        factor: f.
    """

    exponents: Tensor
    """2i / D of every pair of channels, float [D / 2]."""
    frequencies: Tensor
    """Angles per position in sequences of up to T tokens, float [D / 2]."""

    def __init__(self, trained_tokens: int, head_size: int, theta: float, factor: float) -> None:
        super().__init__()
        self.trained_tokens, self.head_size, self.theta, self.factor = trained_tokens, head_size, theta, factor
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
        self.register_buffer("exponents", exponents, persistent=False)
        self.register_buffer("frequencies", 1.0 / theta**exponents, persistent=False)

    def forward(self, tokens: int) -> Rotation:
        """Return the rotations of a sequence of `tokens` tokens."""
        positions = torch.arange(tokens, dtype=torch.float32, device=self.frequencies.device)
        length = positions[-1:] + 1  # a tensor, so that graphs compute it
        growth = (self.factor * length / self.trained_tokens - (self.factor - 1)).clamp(min=1.0)
        theta = self.theta * growth ** (self.head_size / (self.head_size - 2))
        frequencies = torch.where(length > self.trained_tokens, 1.0 / theta**self.exponents, self.frequencies)
        angles = positions[:, None] * frequencies
        return Rotation(angles.cos(), angles.sin())


def build_rotary(config: EncoderConfig) -> nn.Module | None:
    """Return the rotary position embeddings of layers with global attention; `None` if positions are not rotary."""
    if config.rope_theta is None:
        return None
    if config.rope_trained_tokens is None:
        return RotaryEmbedding(config.max_tokens, config.head_size, config.rope_theta, config.rope_linear_factor)
    return DynamicRotaryEmbedding(
        config.rope_trained_tokens, config.head_size, config.rope_theta, config.rope_dynamic_factor
    )


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
