"""Translate the tensors of checkpoints in other layouts to the names that a family's tables use."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["WeightTranslation", "renaming", "same_names"]

WeightTranslation = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
"""Takes tensors by name and the contents of `config.json`, and returns tensors by name."""


def same_names(tensors: Mapping[str, Any], config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a checkpoint that has one layout only."""
    return dict(tensors)


def renaming(patterns: Sequence[tuple[str, str]]) -> WeightTranslation:
    """Return a translation that applies regular expressions and their replacements to every name, in order.

    A tensor keeps its name if the checkpoint has another by the new one. A name that ends in `[i/n]` is a part of a
    merged tensor, see `bert_models.families.base.WeightMap`.
    """

    def rename(tensors: Mapping[str, Any], config_json: Mapping[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        for name, tensor in tensors.items():
            new = name
            for pattern, replacement in patterns:
                new = re.sub(pattern, replacement, new)
            renamed[name if new in tensors or new in renamed else new] = tensor
        return renamed

    return rename
