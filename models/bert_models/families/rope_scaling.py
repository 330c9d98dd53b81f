"""How `config.json` scales rotary positions: `rope_parameters` of transformers 5, or `rope_scaling` before it."""

from collections.abc import Mapping
from typing import Any

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError

__all__ = ["read_rope", "write_rope"]

_KINDS = ("default", "linear", "dynamic", "ntk")


def read_rope(values: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    """Return the fields of `EncoderConfig` that say how queries and keys are rotated.

    `ntk` multiplies the base by its factor f and divides positions by f^(2 / D), with D channels per head.

    Args:
        values: the contents of `config.json`, with hidden size, heads and positions.
        default_theta: the base where none is set.

    Raises:
        ConfigError: values are missing, malformed or not supported.
    """
    key = next((key for key in ("rope_parameters", "rope_scaling") if values.get(key) is not None), "rope_parameters")
    scaling = values.get(key) or {}
    if not isinstance(scaling, dict):
        raise ConfigError(f"{key} must be an object, found {scaling!r:.80}")
    kind = scaling.get("rope_type", scaling.get("type")) or "default"
    if kind not in _KINDS or scaling.get("mixed_b") is not None:
        raise ConfigError(f"{key} must have a rope_type of {', '.join(_KINDS)} without mixed_b, found {scaling!r:.200}")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{key} must rotate whole heads, found {scaling!r:.200}")
    theta = _number(scaling.get("rope_theta") or values.get("rope_theta") or default_theta, "rope_theta")
    if kind == "default":
        return {"rope_theta": theta}
    factor = _number(scaling.get("factor"), f"factor of {key}")
    if kind == "linear":
        return {"rope_theta": theta, "rope_linear_factor": factor}
    if kind == "ntk":
        head_size = values["hidden_size"] // max(values["num_attention_heads"], 1)
        return {"rope_theta": theta * factor, "rope_linear_factor": factor ** (2 / max(head_size, 1))}
    trained = values["max_position_embeddings"]
    longest = values.get("n_positions") or int(_number(factor * trained, f"factor of {key}"))
    return {
        "rope_theta": theta, "rope_trained_tokens": trained, "rope_dynamic_factor": factor, "max_positions": longest,
    }  # fmt: skip


def write_rope(config: EncoderConfig) -> dict[str, Any]:
    """Return the keys of `config.json` that say how queries and keys are rotated; the inverse of `read_rope`."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_trained_tokens is not None:
        parameters |= {"rope_type": "dynamic", "factor": config.rope_dynamic_factor}
        lengths = {"max_position_embeddings": config.rope_trained_tokens, "n_positions": config.max_positions}
        return {"rope_parameters": parameters, **lengths}
    if config.rope_linear_factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": config.rope_linear_factor}
    return {"rope_parameters": parameters}


def _number(value: Any, name: str) -> float:
    """Return a positive number; raise `ConfigError` if `value` is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be a positive number, found {value!r:.80}")
    return float(value)
