"""Translate the tensors of checkpoints in other layouts to the names that a family's tables use."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["WeightTranslation", "renaming"]

WeightTranslation = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Takes and returns tensors by name."""


def renaming(patterns: Sequence[tuple[str, str]]) -> WeightTranslation:
    """Return a translation that applies regular expressions and their replacements to every name, in order.

    A tensor keeps its name if the checkpoint has another by the new one. A name that ends in `[i/n]` is a part of a
    merged tensor, see `bert_models.families.base.WeightMap`.
    """

    def rename(tensors: Mapping[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        for name, tensor in tensors.items():
            new = name
            for pattern, replacement in patterns:
                new = re.sub(pattern, replacement, new)
            renamed[name if new in tensors or new in renamed else new] = tensor
        return renamed

    return rename
