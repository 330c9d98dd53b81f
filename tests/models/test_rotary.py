"""Rotary position embeddings, local attention and gated pre-norm layers, apart from any family."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from bert_models import FAMILIES, ConfigError, EncoderConfig
from bert_models.layers import Encoder, FeedForward
from bert_models.rotary import RotaryEmbedding, build_rotary, rotate

CONFIG = EncoderConfig(
    family="bert",
    vocab_size=50,
    hidden_size=24,
    num_layers=3,
    num_heads=3,
    intermediate_size=37,
    max_positions=40,
    type_vocab_size=0,
    positions="rotary",
    rope_theta=100.0,
)
LOCAL = replace(CONFIG, local_layers=(0, 1, 2), sliding_window=2, local_rope_theta=10.0)


def encode(config: EncoderConfig, ids: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = Encoder(config).eval()
    with torch.no_grad():
        return encoder(ids, torch.ones_like(ids))


def test_scores_of_rotated_vectors_depend_on_the_distance_alone() -> None:
    rotation = RotaryEmbedding(9, 8, 100.0)(9)
    torch.manual_seed(0)
    query, key = (torch.randn(8).expand(1, 1, 9, 8) for _ in range(2))
    scores = (rotate(query, rotation) @ rotate(key, rotation).transpose(-1, -2))[0, 0]
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)
    assert float(scores[0].std()) > 0.1  # the distance does matter


def test_rotations_are_no_part_of_checkpoints() -> None:
    assert not [name for name in Encoder(LOCAL).state_dict() if "rotary" in name or "embeddings.position" in name]


def test_local_attention_reads_the_window_alone() -> None:
    """Three layers of two tokens each reach six tokens."""
    ids = torch.arange(20)[None]
    changed = ids.clone()
    changed[0, 3] = 49
    for config, reach in ((LOCAL, 6), (CONFIG, 16)):
        differs = (encode(config, ids) != encode(config, changed)).any(dim=-1)[0]
        assert differs.nonzero().max() == 3 + reach, config.local_layers


def test_layers_without_a_window_of_their_own_use_the_global_base() -> None:
    ids = torch.arange(20)[None]
    wide = replace(LOCAL, sliding_window=40, local_rope_theta=None)
    assert torch.equal(encode(CONFIG, ids), encode(wide, ids))
    assert not torch.equal(encode(CONFIG, ids), encode(replace(wide, local_rope_theta=10.0), ids))


def test_gate_is_activated_and_up_is_not() -> None:
    block = FeedForward(replace(CONFIG, gated_feed_forward=True, activation="silu", up_bias=False, down_bias=False))
    assert sorted(block.state_dict()) == ["down.weight", "gate.weight", "up.weight"]
    x = torch.randn(2, 5, 24)
    assert block.gate is not None
    expected = (F.silu(x @ block.gate.weight.T) * (x @ block.up.weight.T)) @ block.down.weight.T
    assert torch.allclose(block(x), expected, atol=1e-6)


def test_pre_norm_has_a_final_norm_and_none_before_the_first_attention() -> None:
    names = Encoder(replace(CONFIG, norm_first=True, norm_bias=False)).state_dict()
    assert "final_norm.weight" in names
    assert "layers.0.attention_norm.weight" not in names
    assert "layers.1.attention_norm.weight" in names
    assert not [name for name in names if "norm" in name and name.endswith("bias")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": None}, "rope_theta must be set if and only if positions is rotary, found None"),
        ({"rope_theta": -1.0}, "rope_theta must be positive, found -1.0"),
        ({"num_heads": 8}, "the width of a head must be even to be rotated in pairs, found 3"),
        ({"local_layers": (1,)}, "sliding_window must be set if and only if there are local_layers, found None"),
        ({"local_layers": (3,), "sliding_window": 2}, r"local_layers must be indices below 3, found \[3\]"),
        ({"local_layers": [1]}, r"local_layers must be whole numbers, found \[1\]"),
        ({"local_layers": (0,), "sliding_window": 0}, "sliding_window must lie in 1 to 16777216, found 0"),
        ({"norm_first": 1}, "norm_first must be true or false, found 1"),
        ({"classifier_pooling": "max"}, "classifier_pooling must be one of cls, mean, found 'max'"),
        ({"norm_first": True, "num_layer_groups": 1}, "num_layer_groups is not supported together"),
    ],
)
def test_invalid_options_are_errors(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_other_families_have_none_of_these() -> None:
    names = Encoder(FAMILIES["bert"].preset("tiny")).state_dict()
    assert not [name for name in names if "gate" in name or "final_norm" in name]


def test_sequences_up_to_the_trained_length_are_not_scaled() -> None:
    plain = build_rotary(CONFIG)
    dynamic = build_rotary(replace(CONFIG, rope_trained_tokens=32, rope_dynamic_factor=2.0))
    assert plain is not None
    assert dynamic is not None
    assert all(torch.equal(*pair) for pair in zip(plain(32), dynamic(32), strict=True))
    assert not torch.allclose(plain(40).cos, dynamic(40).cos)
    theta = 100.0 * (2.0 * 40 / 32 - 1) ** (8 / 6)
    assert torch.allclose(dynamic(40).cos, RotaryEmbedding(40, 8, theta)(40).cos, atol=1e-5)


def test_linear_scaling_divides_positions() -> None:
    scaled = build_rotary(replace(CONFIG, rope_linear_factor=2.0))
    assert scaled is not None
    assert torch.allclose(scaled(39).sin[::2], RotaryEmbedding(20, 8, 100.0)(20).sin, atol=1e-6)


def test_two_channels_cannot_be_scaled_dynamically() -> None:
    with pytest.raises(ConfigError, match="the width of a head must be at least 4 to be scaled dynamically, found 2"):
        replace(CONFIG, num_heads=12, rope_trained_tokens=32)
