"""Attention probabilities as the page draws them."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_runtime import AttentionModel

__all__ = ["SCALE", "display_attention"]

SCALE = 65535
"""A probability of 1 in the message: two bytes each, where JSON takes nine."""


def display_attention(model: AttentionModel, value: Mapping[str, str]) -> dict[str, Any]:
    """Return the attention of an input: its tokens, and the probabilities of all layers and heads.

    Args:
        model: the attention graph.
        value: the text, or pair of texts.
    """
    found = model(value)
    scaled = np.round(found.probabilities * SCALE).astype("<u2")
    return {
        "tokens": [
            {"token": word, "text": sequence} for word, sequence in zip(found.words, found.sequence_ids, strict=True)
        ],
        "num_layers": len(found.layers),
        "num_heads": len(found.heads),
        "scale": SCALE,
        "probabilities": base64.b64encode(scaled.tobytes()).decode(),
        "truncated": found.truncated,
        "max_tokens": model.max_tokens,
    }
