"""Toy-size random reference models and inputs, and their comparison with ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bert_models import TaskModel

TOLERANCE = 1e-5

BATCHES = [pytest.param(1, id="batch-1"), pytest.param(3, id="batch-3")]
MASKS = [pytest.param(mask, id=f"{mask}-mask") for mask in ("full", "random", "left")]


def toy_config(**changes: Any) -> dict[str, Any]:
    """Return sizes that run in milliseconds; no two are equal, so that confused axes show."""
    return {
        "vocab_size": 101,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 37,
        "max_position_embeddings": 48,
        "type_vocab_size": 2,
        **changes,
    }


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Change every parameter at random: LayerNorm and biases are initialised to values that hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def inputs(batch: int, mask: str, vocab_size: int = 101, tokens: int = 19, seed: int = 0) -> tuple[Tensor, ...]:
    """Return random token ids, attention mask and segment ids, int64 [batch, tokens]."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab_size, (batch, tokens), generator=generator)
    segments = torch.randint(2, (batch, tokens), generator=generator)
    attention = torch.ones_like(ids)
    if mask == "random":
        attention = (torch.rand((batch, tokens), generator=generator) < 0.6).long()
        attention[:, tokens // 2] = 1
    if mask == "left":  # padding on the left, none in the first sequence
        attention = (torch.arange(tokens) >= 3 * torch.arange(batch)[:, None]).long()
    return ids, attention, segments


def max_difference(ours: TaskModel, theirs: Any, batch: int, mask: str, output: str, vocab_size: int = 101) -> float:
    """Return the maximum absolute difference between our output and the named output of transformers."""
    ids, attention, segments = inputs(batch, mask, vocab_size)
    with torch.no_grad():
        found = ours(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments)[output]
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


def save_reference(model: Any, folder: Path) -> Path:
    """Save a transformers model as a checkpoint."""
    model.save_pretrained(folder)
    return folder
