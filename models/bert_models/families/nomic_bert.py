"""NomicBERT (Nussbaum et al., arXiv:2402.01613): BERT with rotary positions, SwiGLU and no biases but LayerNorm's."""

from collections.abc import Mapping
from typing import Any

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError
from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.bert import BERT, bert_size
from bert_models.families.rope_scaling import read_rope, write_rope
from bert_models.families.weight_layouts import renaming

__all__ = ["NOMIC_BERT"]

_THETA = 1000.0

_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "rope_theta": "rotary_emb_base",
}
"""Keys of transformers, and those that the published checkpoints inherited from GPT-2."""

_ARCHITECTURES = {"NomicBertForPreTraining": "NomicBertForMaskedLM"}
"""Class names of the published checkpoints, and those of transformers."""


def _canonical_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys of transformers to a published `config.json`, whose keys are GPT-2's."""
    found = dict(values)
    for key, old in _GPT2_KEYS.items():
        if found.get(key) is None and found.get(old) is not None:
            found[key] = found[old]
    if found.get("hidden_act") is None and found.get("activation_function") == "swiglu":
        found["hidden_act"] = "silu"
    _set_length(found)
    multiple, size = found.get("pad_vocab_size_multiple"), found.get("vocab_size")
    if isinstance(multiple, int) and isinstance(size, int) and multiple > 0:
        found["vocab_size"] = -(-size // multiple) * multiple
    if isinstance(names := found.get("architectures"), list):
        found["architectures"] = [_ARCHITECTURES.get(name, name) if isinstance(name, str) else name for name in names]
    return {"type_vocab_size": 2, **found}


def _set_length(found: dict[str, Any]) -> None:
    """Set `max_position_embeddings` to the longest sequence, or to the trained length where rotations are scaled."""
    parameters, factor = found.get("rope_parameters"), found.get("rotary_scaling_factor")
    if parameters is None and factor is not None:
        found["rope_parameters"] = {"rope_type": "dynamic", "factor": factor, "rope_theta": found.get("rope_theta")}
        found["max_position_embeddings"] = found.get("max_trained_positions", found.get("max_position_embeddings"))
    elif not (isinstance(parameters, dict) and parameters.get("rope_type") == "dynamic"):
        lengths = [found.get(key) for key in ("n_positions", "max_position_embeddings")]
        if numbers := [length for length in lengths if isinstance(length, int)]:
            found["max_position_embeddings"] = max(numbers)  # without scaling, rotations do not end at a length


def _read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    width = values["hidden_size"] // max(values["num_attention_heads"], 1)
    if values.get("head_dim") not in (None, width):
        raise ConfigError(f"head_dim must be hidden_size / num_attention_heads, found {values['head_dim']!r:.80}")
    return read_rope(values, _THETA)


def _write_config(config: EncoderConfig) -> dict[str, Any]:
    return {**write_rope(config), "head_dim": config.head_size}


NOMIC_BERT = Family(
    name="nomic_bert",
    prefix="nomic_bert.",
    canonical_config=_canonical_config,
    read_config=_read_config,
    write_config=_write_config,
    config_keys={**BERT.config_keys, "embedding_dropout": "embd_pdrop"},
    defaults={
        "positions": "rotary",
        "rope_theta": _THETA,
        "gated_feed_forward": True,
        "attention_bias": False,
        "up_bias": False,
        "down_bias": False,
        "activation": "silu",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # Keys of the published checkpoints: their code has variants that transformers' has not.
    fixed_config={
        "activation_function": "swiglu",
        "causal": False,
        "prenorm": False,
        "parallel_block": False,
        "use_rms_norm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "num_experts": 0,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    encoder_weights={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.norm": "emb_ln",
        "layers.{n}.attention.query": "encoder.layers.{n}.attn.Wqkv[0/3]",
        "layers.{n}.attention.key": "encoder.layers.{n}.attn.Wqkv[1/3]",
        "layers.{n}.attention.value": "encoder.layers.{n}.attn.Wqkv[2/3]",
        "layers.{n}.attention.output": "encoder.layers.{n}.attn.out_proj",
        "layers.{n}.attention_norm": "encoder.layers.{n}.norm1",
        "layers.{n}.feed_forward.gate": "encoder.layers.{n}.mlp.fc12",
        "layers.{n}.feed_forward.up": "encoder.layers.{n}.mlp.fc11",
        "layers.{n}.feed_forward.down": "encoder.layers.{n}.mlp.fc2",
        "layers.{n}.feed_forward_norm": "encoder.layers.{n}.norm2",
    },
    canonical_weights=renaming(
        (
            (r"^bert\.", "nomic_bert."),
            (r"(^|nomic_bert\.)layers\.", r"\1encoder.layers."),
            (r"embeddings\.LayerNorm\.", "emb_ln."),
            (r"\.self_attn\.q_proj\.weight$", ".attn.Wqkv.weight[0/3]"),
            (r"\.self_attn\.k_proj\.weight$", ".attn.Wqkv.weight[1/3]"),
            (r"\.self_attn\.v_proj\.weight$", ".attn.Wqkv.weight[2/3]"),
            (r"\.self_attn\.o_proj\.", ".attn.out_proj."),
            (r"\.mlp\.up_proj\.", ".mlp.fc11."),
            (r"\.mlp\.gate_proj\.", ".mlp.fc12."),
            (r"\.mlp\.down_proj\.", ".mlp.fc2."),
            (r"\.post_attention_layernorm\.", ".norm1."),
            (r"\.post_mlp_layernorm\.", ".norm2."),
            (r"^cls\.predictions\.decoder\.bias$", "cls.predictions.bias"),
        )
    ),
    head_weights={
        "text-classification": {"dense": "nomic_bert.pooler.dense", "output": "classifier"},
        "token-classification": BERT.head_weights["token-classification"],
        "fill-mask": {
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.layer_norm",
            "bias": "cls.predictions.bias",
        },
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "NomicBertForSequenceClassification",
        "token-classification": "NomicBertForTokenClassification",
        "fill-mask": "NomicBertForMaskedLM",
        "sentence-embedding": "NomicBertModel",
    },
    base_architecture="NomicBertModel",
    decoder_weights=("cls.predictions.decoder.weight",),
    sizes={"base": bert_size(12, 768, vocab_size=30528, max_positions=2048, type_vocab_size=2)},
    ignored_weights=(
        r"(nomic_bert\.)?(.*rotary_emb\.\w+|embeddings\.position_ids|pooler\.dense\.(weight|bias))|(cls|classifier|crf)\..*"
    ),
)
