"""Read what a checkpoint's own model card says of its licence, languages and origin."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bert_models import Checkpoint

__all__ = ["read_source_card"]

_MAX_CHARS = 100_000
"""Characters of a card that are read; its metadata come first."""

_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)

_HUB_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")

_COPIED_KEYS = ("language", "license", "license_name", "license_link")


def read_source_card(source: Checkpoint) -> dict[str, Any]:
    """Return the metadata that a bundle inherits from its checkpoint; what the checkpoint does not say is left out.

    Returns:
        `language`, `license`, `license_name` and `license_link` as the checkpoint's `README.md` or `config.json` has
        them, and as `base_model` the checkpoint itself, if it was opened by its hub id, or else what its card names.
        (`_name_or_path` in `config.json` may be a folder of another machine.)
    """
    found = _front_matter(source.path / "README.md")
    config = source.config_json
    copied = {key: found.get(key) or config.get(key) for key in _COPIED_KEYS}
    opened_by = source.name.partition("@")[0] if source.revision else None
    base_models = (opened_by, found.get("base_model"))
    copied["base_model"] = next((value for value in base_models if _is_hub_id(value)), None)
    return {key: value for key, value in copied.items() if _is_text(value)}


def _front_matter(path: Path) -> Mapping[str, Any]:
    """Return the YAML metadata at the start of a model card; empty where there are none that can be read."""
    try:
        with path.open(encoding="utf-8") as stream:
            match = _FRONT_MATTER.match(stream.read(_MAX_CHARS))
        values = yaml.safe_load(match[1]) if match else {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_hub_id(value: object) -> bool:
    """Return whether a value is a hub id, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(item, str) and _HUB_ID.fullmatch(item) for item in values)


def _is_text(value: object) -> bool:
    """Return whether a value is a short text, or a list of them."""
    values = value if isinstance(value, list) else [value]
    return 0 < len(values) <= 200 and all(isinstance(item, str) and 0 < len(item) <= 500 for item in values)
