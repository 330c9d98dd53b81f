"""Named sizes have the published numbers of parameters."""

import pytest
import torch

from bert_models import FAMILIES, ConfigError, TaskModel
from bert_runtime.tasks import SentenceEmbedding

MILLIONS = {
    ("bert", "tiny"): 4.4,
    ("bert", "mini"): 11.2,
    ("bert", "small"): 28.8,
    ("bert", "medium"): 41.4,
    ("bert", "base"): 109.5,
    ("bert", "large"): 335.1,
    ("roberta", "base"): 124.6,
    ("roberta", "large"): 355.4,
    ("xlm-roberta", "base"): 278.0,
    ("xlm-roberta", "large"): 559.9,
    ("camembert", "base"): 110.6,
    ("camembert", "large"): 336.7,
    ("distilbert", "base"): 66.4,
    ("albert", "base"): 11.7,
    ("albert", "large"): 17.7,
    ("albert", "xlarge"): 58.7,
    ("albert", "xxlarge"): 222.6,
    ("electra", "small"): 13.5,
    ("electra", "base"): 108.9,
    ("electra", "large"): 334.1,
    ("mpnet", "base"): 109.5,
    ("deberta-v2", "xsmall"): 70.7,
    ("deberta-v2", "small"): 141.3,
    ("deberta-v2", "base"): 183.8,
    ("deberta-v2", "large"): 434.0,
    ("ernie", "base"): 118.0,
    ("modernbert", "tiny"): 16.8,
    ("modernbert", "mini"): 31.9,
    ("modernbert", "small"): 68.1,
    ("modernbert", "base"): 149.0,
    ("modernbert", "large"): 394.8,
    ("nomic_bert", "base"): 137.3,
    ("gte", "base"): 137.4,
    ("gte", "large"): 435.2,
}
"""Parameters of the published encoders in millions, including the pooler if the family has one."""


def test_every_preset_is_listed() -> None:
    assert set(MILLIONS) == {(name, size) for name, family in FAMILIES.items() for size in family.sizes}


@pytest.mark.parametrize(("family", "size"), MILLIONS)
def test_presets_have_the_published_number_of_parameters(family: str, size: str) -> None:
    config = FAMILIES[family].preset(size)
    with torch.device("meta"):
        encoder = TaskModel(config, SentenceEmbedding(dimensions=config.hidden_size)).encoder
    has_pooler = family not in ("distilbert", "electra", "deberta-v2", "modernbert")
    pooler = config.hidden_size * (config.hidden_size + 1) if has_pooler else 0
    found = sum(parameter.numel() for parameter in encoder.parameters()) + pooler
    assert found / 1e6 == pytest.approx(MILLIONS[family, size], abs=0.06)


def test_preset_accepts_changed_fields() -> None:
    assert FAMILIES["bert"].preset("base", vocab_size=28996).vocab_size == 28996


def test_unknown_size_error_lists_the_sizes() -> None:
    with pytest.raises(ConfigError, match=r"bert has the sizes tiny, mini, .*, found 'huge'"):
        FAMILIES["bert"].preset("huge")
