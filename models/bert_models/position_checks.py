"""Check the fields of an encoder's configuration that say how positions enter, and which keys a query reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert_models.field_types import MAX_SIZE

if TYPE_CHECKING:
    from bert_models.config import EncoderConfig

__all__ = ["position_problems", "relative_position_problems"]


def position_problems(config: "EncoderConfig") -> Iterator[str]:
    """Return what is wrong with rotary positions and local attention."""
    if (config.rope_theta is not None) != (config.positions == "rotary"):
        yield f"rope_theta must be set if and only if positions is rotary, found {config.rope_theta}"
    for name in (name for name in vars(config) if "rope_" in name):
        if (value := getattr(config, name)) is not None and value <= 0:
            yield f"{name} must be positive, found {value}"
    if config.positions == "rotary" and config.num_heads >= 1 and config.head_size % 2:
        yield f"the width of a head must be even to be rotated in pairs, found {config.head_size}"
    if config.rope_trained_tokens is not None and config.num_heads >= 1 and config.head_size < 4:
        yield f"the width of a head must be at least 4 to be scaled dynamically, found {config.head_size}"
    if bool(config.local_layers) != (config.sliding_window is not None):
        yield f"sliding_window must be set if and only if there are local_layers, found {config.sliding_window}"
    if config.sliding_window is not None and not 1 <= config.sliding_window <= MAX_SIZE:
        yield f"sliding_window must lie in 1 to {MAX_SIZE}, found {config.sliding_window}"
    if unknown := [index for index in config.local_layers if not 0 <= index < config.num_layers]:
        yield f"local_layers must be indices below {config.num_layers}, found {unknown[:10]}"
    if config.num_layer_groups is not None and (config.local_layers or config.norm_first):
        yield "num_layer_groups is not supported together with local_layers or norm_first"


def relative_position_problems(config: "EncoderConfig") -> Iterator[str]:
    """Return what is wrong with disentangled attention."""
    for name in ("position_buckets", "max_relative_positions"):
        if (value := getattr(config, name)) is not None and not 1 <= value <= MAX_SIZE:
            yield f"{name} must lie in 1 to {MAX_SIZE}, found {value}"
    if config.position_attention is None:
        if config.positions == "relative":
            yield "positions can only be relative with a position_attention, found none"
    elif config.relative_buckets is not None:
        yield "position_attention and relative_buckets exclude each other, found both"
    elif config.position_buckets is not None and not 2 <= config.position_buckets < 2 * (config.relative_limit - 1):
        yield (
            "position_buckets must be at least 2, and below twice the max_relative_positions, found "
            f"{config.position_buckets} and {config.relative_limit}"
        )
