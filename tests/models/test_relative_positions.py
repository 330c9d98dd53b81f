"""Relative position buckets compared with transformers, and the bias that attention adds."""

import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from bert_models import FAMILIES, ConfigError
from bert_models.relative_positions import MASKED_SCORE, RelativePositionBias, distance_buckets

CONFIG = FAMILIES["mpnet"].preset("base", hidden_size=12, num_heads=3, max_positions=42)


@pytest.mark.parametrize("num_buckets", [4, 8, 32, 64, 256])
def test_buckets_equal_those_of_transformers(num_buckets: int) -> None:
    distances = torch.arange(-600, 601)
    expected = MPNetEncoder.relative_position_bucket(distances, num_buckets=num_buckets)
    assert torch.equal(distance_buckets(distances, num_buckets), expected)


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_bias_depends_on_the_distance_alone(tokens: int) -> None:
    module = RelativePositionBias(CONFIG)
    mask = torch.ones(2, 1, tokens, tokens, dtype=torch.bool)
    mask[1, ..., 0] = False
    with torch.no_grad():
        scores = module(mask)
    assert scores.shape == (2, 3, tokens, tokens)
    for query in range(tokens):
        for key in range(tokens):
            bucket = int(distance_buckets(torch.tensor(key - query), 32))
            assert torch.equal(scores[0, :, query, key], module.table.weight[bucket])
    assert (scores[1, ..., 0] == MASKED_SCORE).all()
    assert torch.equal(scores[1, ..., 1:], scores[0, ..., 1:])


def test_gradient_of_the_table_counts_queries_and_keys() -> None:
    module = RelativePositionBias(CONFIG)
    module(torch.ones(1, 1, 5, 5, dtype=torch.bool)).sum().backward()
    assert module.table.weight.grad is not None
    used = distance_buckets(torch.arange(-4, 5), 32)
    counts = 5 - torch.arange(-4, 5).abs()
    assert torch.equal(module.table.weight.grad[used], counts[:, None].expand(-1, 3).float())
    assert float(module.table.weight.grad.sum()) == 3 * 25


def test_checkpoint_keeps_the_table_alone() -> None:
    assert list(RelativePositionBias(CONFIG).state_dict()) == ["table.weight"]


@pytest.mark.parametrize("number", [0, 3, 257])
def test_invalid_number_of_buckets_is_an_error(number: int) -> None:
    with pytest.raises(ConfigError, match=f"relative_buckets must lie in 4 to 256, found {number}"):
        FAMILIES["mpnet"].preset("base", relative_buckets=number)
