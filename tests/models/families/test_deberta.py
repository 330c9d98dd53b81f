"""DeBERTa's options compared with transformers, the names of its heads' weights, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from bert_models import FAMILIES, ConfigError, TaskModel, load_model, open_checkpoint, save_model
from bert_models.disentangled_attention import (
    PositionScores,
    fold_position_projections,
    logarithmic_buckets,
    position_indices,
)
from bert_runtime.tasks import FillMask, SentenceEmbedding

from ..toy import TOLERANCE, inputs, randomize, save_reference
from ..toy_families import reference

DEBERTA = FAMILIES["deberta-v2"]

VARIANTS: dict[str, dict[str, Any]] = {
    "c2p": {"pos_att_type": "c2p"},
    "p2c": {"pos_att_type": ["p2c"]},
    "own projections": {"share_att_key": False},
    "own projections of p2c": {"share_att_key": False, "pos_att_type": "p2c"},
    "distances": {"position_buckets": -1, "max_relative_positions": -1},
    "few distances": {"position_buckets": -1, "max_relative_positions": 7},
    "2 buckets": {"position_buckets": 2, "max_relative_positions": 5},
    "more buckets than tokens": {"position_buckets": 44, "max_relative_positions": -1},
    "plain positions": {"norm_rel_ebd": "none", "position_biased_input": True},
    "segments": {"type_vocab_size": 2},
    "absolute": {"relative_attention": False, "pos_att_type": None, "position_biased_input": True,
                 "norm_rel_ebd": "none"},
    "as written by old versions": {"pos_att_type": "P2C | c2p", "norm_rel_ebd": "Layer_Norm", "layer_norm_eps": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("batch", "mask"),
    [(3, "random"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, "full"), (1, "left"), (3, "left")))],
)
def test_variant_equals_transformers_in_both_directions(
    variant: str, batch: int, mask: str, tmp_path: Path, classifier_checkpoint: Path
) -> None:
    theirs = reference("deberta-v2", "Model", **VARIANTS[variant])
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path / "theirs"))
    ours = load_model(checkpoint, SentenceEmbedding(dimensions=24))
    ids, attention, segments = inputs(batch, mask, tokens=47)
    extra = {"token_type_ids": segments} if checkpoint.config.uses_segment_ids else {}

    def difference(model: Any) -> float:
        with torch.no_grad():
            found = ours.encoder(ids, attention, segments)
            expected = model(input_ids=ids, attention_mask=attention, **extra).last_hidden_state
        return float((found - expected)[attention.bool()].abs().max())

    assert difference(theirs) <= TOLERANCE
    randomize(ours, seed=1)
    assert difference(theirs) > TOLERANCE
    (tmp_path / "ours").mkdir()
    save_model(ours, tmp_path / "ours", tokenizer_from=classifier_checkpoint)
    assert open_checkpoint(tmp_path / "ours").config == checkpoint.config
    assert difference(type(theirs).from_pretrained(tmp_path / "ours").eval()) <= TOLERANCE


@pytest.mark.parametrize(("buckets", "limit"), [(2, 5), (8, 30), (256, 512), (256, 1024), (32, 18)])
def test_buckets_equal_those_of_transformers(buckets: int, limit: int) -> None:
    distances = torch.arange(-1100, 1101)
    expected = make_log_bucket_position(distances, buckets, limit).long()
    assert torch.equal(logarithmic_buckets(distances, buckets, limit), expected)
    config = DEBERTA.preset("base", position_buckets=buckets, max_relative_positions=limit)
    indices = position_indices(distances, config)
    assert int(indices.min()) >= 0
    assert torch.equal(indices, (expected + buckets).clamp(0, 2 * buckets - 1))


@pytest.mark.parametrize("legacy", [True, False])
def test_both_names_of_the_fill_mask_head_are_read(legacy: bool, tmp_path: Path) -> None:
    theirs = reference("deberta-v2", "ForMaskedLM", legacy=legacy)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, FillMask(mask_token="[MASK]", mask_token_id=4))
    ids, attention, segments = inputs(3, "full")
    with torch.no_grad():
        found, expected = ours(ids, attention, segments), theirs(input_ids=ids, attention_mask=attention).logits
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_head_of_the_current_name_takes_precedence(tmp_path: Path) -> None:
    """Published checkpoints have both, if they were fine-tuned by transformers."""
    theirs = reference("deberta-v2", "ForMaskedLM")
    folder = save_reference(theirs, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    other = {
        "lm_predictions.lm_head.dense.weight": torch.zeros(24, 24),
        "mask_predictions.classifier.bias": torch.ones(1),
    }
    save_file({**tensors, **other}, folder / "model.safetensors", metadata={"format": "pt"})
    ours = load_model(open_checkpoint(folder), FillMask(mask_token="[MASK]", mask_token_id=4))
    assert torch.equal(ours.head.dense.weight, theirs.cls.predictions.transform.dense.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size must be 0, found 3: this variant of deberta-v2 is not supported"),
        ({"embedding_size": 12}, "embedding_size must equal hidden_size 24, found 12"),
        ({"pooler_hidden_size": 12}, "pooler_hidden_size must equal hidden_size 24, found 12"),
        ({"attention_head_size": 8}, "attention_head_size must equal hidden_size / num_attention_heads, found 8"),
        ({"pos_att_type": ["c2p", "p2p"]}, "pos_att_type must name c2p, p2c or both, found"),
        ({"pos_att_type": 3}, "pos_att_type must be a list of c2p and p2c, found 3"),
        ({"pos_att_type": None}, "relative_attention must be true and pos_att_type name c2p, p2c or both"),
        ({"relative_attention": False}, "or there must be neither, found False"),
        ({"position_buckets": "8"}, "position_buckets must be a whole number, found '8'"),
        ({"position_buckets": 1}, "position_buckets must be at least 2"),
        ({"position_buckets": 60}, "below twice the max_relative_positions, found 60 and 30"),
        ({"share_att_key": "yes"}, "share_att_key must be true or false, found 'yes'"),
    ],
)
def test_unsupported_option_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_reference(reference("deberta-v2", "Model"), tmp_path)
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
        open_checkpoint(folder)


def test_relative_positions_need_scores() -> None:
    with pytest.raises(ConfigError, match="positions can only be relative with a position_attention, found none"):
        DEBERTA.preset("base", position_attention=None)


@pytest.mark.parametrize("parts", ["c2p", "p2c", "c2p|p2c"])
def test_folded_projections_change_nothing_and_end_with_the_context(parts: str) -> None:
    config = DEBERTA.preset(
        "base", vocab_size=101, hidden_size=24, num_layers=2, num_heads=4, intermediate_size=37, max_positions=48,
        position_buckets=8, position_attention=parts,
    )  # fmt: skip
    model = TaskModel(config, SentenceEmbedding(dimensions=24)).eval()
    randomize(model)
    ids, attention, _ = inputs(2, "random")
    names = {*model.state_dict()}
    with torch.no_grad():
        expected = model(ids, attention)
        with fold_position_projections(model):
            modules = [module for module in model.modules() if isinstance(module, PositionScores)]
            assert all(module.position_keys is not None and module.position_queries is not None for module in modules)
            assert torch.allclose(model(ids, attention), expected, atol=1e-6)
        assert all(module.position_keys is None for module in modules)
        assert torch.equal(model(ids, attention), expected)
    assert {*model.state_dict()} == names


def test_segments_that_config_json_does_not_name_are_none(tmp_path: Path) -> None:
    """As in transformers."""
    folder = save_reference(reference("deberta-v2", "Model", type_vocab_size=0), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    values.pop("type_vocab_size")
    (folder / "config.json").write_text(json.dumps(values))
    assert open_checkpoint(folder).config.type_vocab_size == 0
