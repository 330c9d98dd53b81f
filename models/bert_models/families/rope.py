"""Rotary position embeddings in `config.json`, which families keep nested, by kind of layer, or flat."""

from collections.abc import Mapping
from typing import Any

from bert_models.errors import ConfigError

__all__ = ["read_rope_theta", "rope_parameters"]

_PLAIN = {"rope_type": "default", "type": "default", "factor": 1.0, "partial_rotary_factor": 1.0}
"""Keys of an entry and the values that change nothing."""


def read_rope_theta(entry: Any, key: str, default: float) -> float:
    """Return the base of the wavelengths that an entry of `rope_parameters` gives.

    Args:
        entry: an object such as `{"rope_type": "default", "rope_theta": 10000.0}`; `None` where it is not set.
        key: where it stands, for error messages.
        default: the base if the entry has none.

    Raises:
        ConfigError: the entry is malformed, or asks for rotations of another kind, such as scaled ones.
    """
    if entry is None:
        return default
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} must be an object, found {entry!r:.80}")
    for name, value in entry.items():
        if name != "rope_theta" and value is not None and value != _PLAIN.get(name):
            raise ConfigError(f"{key} has {name} {value!r:.80}: rotations other than the default are not supported")
    theta = default if entry.get("rope_theta") is None else entry["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ConfigError(f"{key}.rope_theta must be a number, found {theta!r:.80}")
    return float(theta)


def rope_parameters(theta: float) -> dict[str, Any]:
    """Return the entry for a base; the inverse of `read_rope_theta`."""
    return {"rope_type": "default", "rope_theta": theta}
