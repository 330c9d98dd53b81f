"""DeBERTa-v2 and v3 (He et al., arXiv:2006.03654, arXiv:2111.09543): disentangled attention, no position embeddings.

The two have one architecture: v3's models share the projections of contents and positions, and were pre-trained like
ELECTRA.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert_models.config import POSITION_ATTENTIONS, EncoderConfig
from bert_models.errors import ConfigError
from bert_models.families.base import EMBEDDING_WEIGHTS
from bert_models.families.bert import BERT, bert_size
from bert_models.families.weight_layouts import renaming

__all__ = ["DEBERTA_V2"]

_COMMON = {
    "vocab_size": 128100,
    "max_positions": 512,
    "type_vocab_size": 0,
    "positions": "relative",
    "position_attention": "c2p|p2c",
    "position_buckets": 256,
    "share_position_projections": True,
    "norm_relative_positions": True,
}


def _read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read what says how attention uses positions, with the defaults of `transformers`."""
    for name in ("embedding_size", "pooler_hidden_size"):
        if values.get(name) not in (None, values.get("hidden_size")):
            raise ConfigError(
                f"{name} must equal hidden_size {values.get('hidden_size')}, found {values[name]!r:.80}: this variant "
                "of deberta-v2 is not supported"
            )
    if values.get("attention_head_size") not in (None, values["hidden_size"] // values["num_attention_heads"]):
        raise ConfigError(
            f"attention_head_size must equal hidden_size / num_attention_heads, found "
            f"{values['attention_head_size']!r:.80}: this variant of deberta-v2 is not supported"
        )
    for name in ("relative_attention", "position_biased_input", "share_att_key"):
        if not isinstance(values.get(name, False), bool):
            raise ConfigError(f"{name} must be true or false, found {values[name]!r:.80}")
    attention = _position_attention(values.get("pos_att_type"))
    if bool(values.get("relative_attention")) != (attention is not None):
        raise ConfigError(
            "relative_attention must be true and pos_att_type name c2p, p2c or both, or there must be neither, found "
            f"{values.get('relative_attention')!r:.80} and {values.get('pos_att_type')!r:.80}"
        )
    found: dict[str, Any] = {
        "positions": "absolute" if values.get("position_biased_input", True) else "relative",
        "position_attention": attention,
    }
    if attention is not None:
        found["norm_relative_positions"] = "layer_norm" in str(values.get("norm_rel_ebd", "none")).lower()
        found["share_position_projections"] = bool(values.get("share_att_key", False))
        for name in ("position_buckets", "max_relative_positions"):
            number = values.get(name, -1)
            if not isinstance(number, int) or isinstance(number, bool):
                raise ConfigError(f"{name} must be a whole number, found {number!r:.80}")
            found[name] = number if number > 0 else None  # -1: none, or max_position_embeddings
    return found


def _position_attention(found: Any) -> str | None:
    """Return one of `POSITION_ATTENTIONS` for `pos_att_type`, a list or `p2c|c2p`; `None` for none."""
    parts = found.lower().split("|") if isinstance(found, str) else found or []
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"pos_att_type must be a list of c2p and p2c, found {found!r:.80}")
    name = "|".join(sorted({part.strip() for part in parts} - {""}))
    if name and name not in POSITION_ATTENTIONS:
        raise ConfigError(f"pos_att_type must name c2p, p2c or both, found {found!r:.80}")
    return name or None


def _write_config(config: EncoderConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"position_biased_input": config.positions == "absolute", "relative_attention": False}
    if config.position_attention is not None:
        values |= {
            "relative_attention": True,
            "pos_att_type": config.position_attention.split("|"),
            "position_buckets": -1 if config.position_buckets is None else config.position_buckets,
            "max_relative_positions": -1 if config.max_relative_positions is None else config.max_relative_positions,
            "share_att_key": config.share_position_projections,
            "norm_rel_ebd": "layer_norm" if config.norm_relative_positions else "none",
        }
    return values


DEBERTA_V2 = replace(
    BERT,
    name="deberta-v2",
    prefix="deberta.",
    defaults={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "classifier_activation": "gelu",
        "token_classifier_dropout": False,
    },
    config_keys={
        **BERT.config_keys,
        "classifier_dropout": "cls_dropout",
        "classifier_activation": "pooler_hidden_act",
    },
    fixed_config={"conv_kernel_size": 0},
    read_config=_read_config,
    write_config=_write_config,
    encoder_weights={
        **BERT.encoder_weights,
        "relative_positions.table": "encoder.rel_embeddings",
        "relative_positions.norm": "encoder.LayerNorm",
        "layers.{n}.attention.query": "encoder.layer.{n}.attention.self.query_proj",
        "layers.{n}.attention.key": "encoder.layer.{n}.attention.self.key_proj",
        "layers.{n}.attention.value": "encoder.layer.{n}.attention.self.value_proj",
        "layers.{n}.attention.positions.query": "encoder.layer.{n}.attention.self.pos_query_proj",
        "layers.{n}.attention.positions.key": "encoder.layer.{n}.attention.self.pos_key_proj",
    },
    head_weights={
        "text-classification": {"dense": "pooler.dense", "output": "classifier"},
        "token-classification": BERT.head_weights["token-classification"],
        "question-answering": BERT.head_weights["question-answering"],
        "fill-mask": BERT.head_weights["fill-mask"],
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "DebertaV2ForSequenceClassification",
        "token-classification": "DebertaV2ForTokenClassification",
        "question-answering": "DebertaV2ForQuestionAnswering",
        "fill-mask": "DebertaV2ForMaskedLM",
        "sentence-embedding": "DebertaV2Model",
    },
    base_architecture="DebertaV2Model",
    pretraining_architecture=None,
    # `legacy: false` in transformers, and what the published v3 checkpoints have.
    canonical_weights=renaming(
        (
            (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
            (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
        )
    ),
    sizes={
        "xsmall": bert_size(12, 384, **_COMMON),
        "small": bert_size(6, 768, **_COMMON),
        "base": bert_size(12, 768, **_COMMON),
        "large": bert_size(24, 1024, **_COMMON),
    },
    ignored_weights=(
        r"(deberta\.)?embeddings\.position_(ids|embeddings\.weight)"
        r"|(pooler|cls|lm_predictions|mask_predictions|classifier|qa_outputs|crf)\..*"
    ),
)
