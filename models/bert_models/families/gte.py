"""GTE (Zhang et al., arXiv:2407.19669), which its authors' code calls `new`: BERT with rotary positions and GeGLU.

The feed-forward block has no dropout before its last projection, unlike that of transformers.
"""

from collections.abc import Mapping
from typing import Any

from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.bert import BERT, bert_size
from bert_models.families.rope_scaling import read_rope, write_rope
from bert_models.families.weight_layouts import renaming

__all__ = ["GTE"]

_THETA = 160_000.0

_LAYER = "encoder.layer.{n}"
_COMMON = {"vocab_size": 30528, "max_positions": 8192, "type_vocab_size": 0, "rope_theta": 500_000.0}


def _canonical_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate class names, and the defaults of the authors' code, to those of transformers."""
    found = {"type_vocab_size": 1, **values}
    if isinstance(names := found.get("architectures"), list):
        found["architectures"] = [f"Gte{name[3:]}" if str(name).startswith("New") else name for name in names]
    if found.get("model_type") == "new":
        found = {"rope_theta": 10_000.0, "pad_token_id": 0, **found}
    return found


GTE = Family(
    name="gte",
    prefix="gte.",
    other_names=("new",),
    canonical_config=_canonical_config,
    read_config=lambda values: read_rope(values, _THETA),
    write_config=write_rope,
    config_keys=BERT.config_keys,
    defaults={
        "positions": "rotary",
        "rope_theta": _THETA,
        "gated_feed_forward": True,
        "up_bias": False,
        "attention_dropout": 0.0,
        "prediction_activation": "gelu",
        "pad_token_id": 1,
    },
    # Keys of the authors' code, which has variants that transformers' has not.
    fixed_config={
        "position_embedding_type": "rope",
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "is_decoder": False,
    },
    encoder_weights={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{n}.attention.query": f"{_LAYER}.attention.qkv_proj[0/3]",
        "layers.{n}.attention.key": f"{_LAYER}.attention.qkv_proj[1/3]",
        "layers.{n}.attention.value": f"{_LAYER}.attention.qkv_proj[2/3]",
        "layers.{n}.attention.output": f"{_LAYER}.attention.o_proj",
        "layers.{n}.attention_norm": f"{_LAYER}.attn_ln",
        "layers.{n}.feed_forward.up": f"{_LAYER}.mlp.up_gate_proj[0/2]",
        "layers.{n}.feed_forward.gate": f"{_LAYER}.mlp.up_gate_proj[1/2]",
        "layers.{n}.feed_forward.down": f"{_LAYER}.mlp.down_proj",
        "layers.{n}.feed_forward_norm": f"{_LAYER}.mlp_ln",
    },
    canonical_weights=renaming(
        (
            (r"^new\.", "gte."),
            (r"(^|gte\.)layers\.", r"\1encoder.layer."),
            (r"\.self_attn\.", ".attention."),
            (r"\.attention\.q_proj\.(\w+)$", r".attention.qkv_proj.\1[0/3]"),
            (r"\.attention\.k_proj\.(\w+)$", r".attention.qkv_proj.\1[1/3]"),
            (r"\.attention\.v_proj\.(\w+)$", r".attention.qkv_proj.\1[2/3]"),
            (r"\.mlp\.up_proj\.(\w+)$", r".mlp.up_gate_proj.\1[0/2]"),
            (r"\.mlp\.gate_proj\.(\w+)$", r".mlp.up_gate_proj.\1[1/2]"),
            (r"\.post_attention_layernorm\.", ".attn_ln."),
            (r"\.post_mlp_layernorm\.", ".mlp_ln."),
            (r"^lm_head\.layer_norm\.", "lm_head.norm."),
        )
    ),
    head_weights={
        "text-classification": {"dense": "gte.pooler.dense", "output": "classifier"},
        "token-classification": BERT.head_weights["token-classification"],
        "fill-mask": {"dense": "lm_head.dense", "norm": "lm_head.norm", "bias": "lm_head.decoder.bias"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "GteForSequenceClassification",
        "token-classification": "GteForTokenClassification",
        "fill-mask": "GteForMaskedLM",
        "sentence-embedding": "GteModel",
    },
    base_architecture="GteModel",
    decoder_weights=("lm_head.decoder.weight",),
    sizes={"base": bert_size(12, 768, **_COMMON), "large": bert_size(24, 1024, **_COMMON)},
    ignored_weights=(
        r"(gte\.)?(.*rotary_emb\.\w+|embeddings\.position_ids|pooler\.dense\.(weight|bias))"
        r"|(lm_head|classifier|qa_outputs|crf)\..*"
    ),
)
