"""What is said about architectures that are not supported."""

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bert_models.families import FAMILIES
from bert_models.families.nearest import NEAREST_FAMILY, describe_unsupported

NOT_TEXT_ENCODERS = {
    "bart", "mbart", "mvp",  # have a decoder
    "esm", "esmc",  # read proteins
    "modernvbert", "perceiver", "ultravbert",  # read images
    "reformer",  # is a decoder
}  # fmt: skip


def test_nearest_families_are_supported_and_the_others_are_not() -> None:
    assert set(NEAREST_FAMILY.values()) <= set(FAMILIES)
    assert NEAREST_FAMILY.keys().isdisjoint(FAMILIES)


@pytest.mark.parametrize("name", sorted(MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys() - NOT_TEXT_ENCODERS - FAMILIES.keys()))
def test_text_encoders_of_transformers_have_a_nearest_family(name: str) -> None:
    assert f"the nearest of these is {NEAREST_FAMILY[name]}" in describe_unsupported({"model_type": name})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "it is a decoder"),
        ({"model_type": "mistral", "architectures": ["MistralModel"]}, "it is a decoder"),
        ({"model_type": "jamba", "architectures": ["JambaForCausalLM"]}, "it is a decoder"),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "it has an encoder and a decoder"),
        ({"model_type": "marian", "is_encoder_decoder": True}, "it has an encoder and a decoder"),
    ],
)
def test_decoders_are_called_so(values: dict[str, object], expected: str) -> None:
    assert describe_unsupported(values) == f"; {expected}, and encoders alone are supported"


@pytest.mark.parametrize("values", [{}, {"model_type": None}, {"model_type": ["qwen3"]}, {"model_type": "resnet"}])
def test_nothing_is_said_of_what_is_unknown(values: dict[str, object]) -> None:
    assert describe_unsupported(values) == ""
    assert describe_unsupported({**values, "architectures": "none"}) == ""


@pytest.mark.parametrize(
    ("values", "family"),
    [
        ({}, "bert"),
        ({"position_embedding_type": "absolute"}, "bert"),
        ({"pos_att_type": ["c2p"]}, "deberta-v2"),
        ({"relative_attention_num_buckets": 32}, "mpnet"),
        ({"rope_theta": 10_000.0}, "modernbert"),
        ({"rotary_emb_base": 1000}, "nomic_bert"),
    ],
)
def test_unknown_text_encoders_are_told_the_family_with_their_positions(values: dict[str, object], family: str) -> None:
    found = describe_unsupported({"model_type": "newbert", "vocab_size": 30_522, **values})
    assert found == f"; by its positions, the nearest of these is {family}: train a checkpoint of that family"
