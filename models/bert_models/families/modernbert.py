"""ModernBERT (Warner et al., arXiv:2412.13663): pre-norm layers without biases, rotary positions, a gated feed-forward
block, and local attention in two of three layers.

Dropout differs from that of transformers, which is off by default: `mlp_dropout` acts after the feed-forward block's
last projection, and after that of attention.
"""

from collections.abc import Mapping
from typing import Any

from bert_models.config import EncoderConfig
from bert_models.errors import ConfigError
from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.rope import read_rope_theta, rope_parameters

__all__ = ["MODERNBERT"]

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`."""

_GLOBAL_EVERY = 3
"""Default of `global_attn_every_n_layers`."""

_THETA = {_GLOBAL: 160_000.0, _LOCAL: 10_000.0}
"""Default bases of the wavelengths."""

_LOCAL_ATTENTION = 128
"""Default of `local_attention`, the tokens that a query reads on both sides."""


def _local_layers(num_layers: int, global_every: int = _GLOBAL_EVERY) -> tuple[int, ...]:
    """Return the indices of layers with local attention, where every `global_every`-th from the first has global."""
    return tuple(index for index in range(num_layers) if index % global_every)


def _size(num_layers: int, hidden_size: int, intermediate_size: int) -> dict[str, Any]:
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // 64,
        "intermediate_size": intermediate_size,
        "vocab_size": 50368,
        "max_positions": 8192,
        "local_layers": _local_layers(num_layers),
        "sliding_window": _LOCAL_ATTENTION // 2,
    }


def _read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the kinds of layers and their rotations to fields of `EncoderConfig`."""
    local = _read_local_layers(values)
    reach = values.get("local_attention", _LOCAL_ATTENTION)
    if isinstance(reach, bool) or not isinstance(reach, int) or reach < 2:
        raise ConfigError(f"local_attention must be a whole number from 2, found {reach!r:.80}")
    thetas = _read_thetas(values)
    return {
        "local_layers": local,
        "sliding_window": reach // 2 if local else None,
        "rope_theta": thetas[_GLOBAL],
        "local_rope_theta": thetas[_LOCAL] if local else None,
    }


def _read_local_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    num_layers, kinds = values["num_hidden_layers"], values.get("layer_types")
    if kinds is None:
        every = values.get("global_attn_every_n_layers", _GLOBAL_EVERY)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigError(f"global_attn_every_n_layers must be a whole number from 1, found {every!r:.80}")
        return _local_layers(num_layers, every)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError(f"layer_types must list {num_layers} layers, found {kinds!r:.80}")
    if unknown := [kind for kind in kinds if kind not in (_GLOBAL, _LOCAL)]:
        raise ConfigError(f"layer_types must be {_GLOBAL} or {_LOCAL}, found {unknown[0]!r:.80}")
    return tuple(index for index, kind in enumerate(kinds) if kind == _LOCAL)


def _read_thetas(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the base of either kind of layers, as transformers 5 writes it, or 4."""
    nested = values.get("rope_parameters") or {}
    if not isinstance(nested, Mapping) or (unknown := [key for key in nested if key not in _THETA]):
        found = nested if not isinstance(nested, Mapping) else unknown[0]
        raise ConfigError(f"rope_parameters must be an object of {_GLOBAL} and {_LOCAL}, found {found!r:.80}")
    flat: dict[str, float] = {}
    for kind, key in ((_GLOBAL, "global_rope_theta"), (_LOCAL, "local_rope_theta")):
        # transformers 4 takes a local base of null for the global one
        default = flat[_GLOBAL] if kind == _LOCAL and values.get(key, 0) is None else _THETA[kind]
        flat[kind] = read_rope_theta({"rope_theta": values.get(key)}, key, default)
    return {kind: read_rope_theta(nested.get(kind), f"rope_parameters.{kind}", flat[kind]) for kind in _THETA}


def _write_config(config: EncoderConfig) -> dict[str, Any]:
    """Translate the kinds of layers and their rotations to keys of transformers 5, and of 4 where it has them."""
    assert config.rope_theta is not None
    local_theta = config.local_rope_theta or config.rope_theta
    kinds = [_LOCAL if index in config.local_layers else _GLOBAL for index in range(config.num_layers)]
    every = next(
        (n for n in range(1, config.num_layers + 1) if _local_layers(config.num_layers, n) == config.local_layers), None
    )
    return {
        "layer_types": kinds,
        "rope_parameters": {_GLOBAL: rope_parameters(config.rope_theta), _LOCAL: rope_parameters(local_theta)},
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": local_theta,
        **({} if every is None else {"global_attn_every_n_layers": every}),
        **({} if config.sliding_window is None else {"local_attention": 2 * config.sliding_window}),
    }


_HEAD = {"dense": "head.dense", "norm": "head.norm", "output": "classifier"}

MODERNBERT = Family(
    name="modernbert",
    prefix="model.",
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_activation",
        "classifier_activation": "classifier_activation",
        "prediction_activation": "classifier_activation",
        "classifier_pooling": "classifier_pooling",
        "layer_norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "up_bias": "mlp_bias",
        "down_bias": "mlp_bias",
        "head_bias": "classifier_bias",
        "decoder_bias": "decoder_bias",
        "embedding_dropout": "embedding_dropout",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "classifier_dropout": "classifier_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    defaults={
        "type_vocab_size": 0,
        "positions": "rotary",
        "rope_theta": _THETA[_GLOBAL],
        "local_rope_theta": _THETA[_LOCAL],
        "gated_feed_forward": True,
        "norm_first": True,
        "attention_bias": False,
        "up_bias": False,
        "down_bias": False,
        "norm_bias": False,
        "head_transform": True,
        "head_bias": False,
        "classifier_activation": "gelu",
        "prediction_activation": "gelu",
        "layer_norm_eps": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "classifier_dropout": 0.0,
        "question_answering_dropout": None,
        "pad_token_id": 50283,
    },
    fixed_config={"rope_scaling": None},
    read_config=_read_config,
    write_config=_write_config,
    encoder_weights={
        "embeddings.token": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{n}.attention_norm": "layers.{n}.attn_norm",
        "layers.{n}.attention.query": "layers.{n}.attn.Wqkv[0/3]",
        "layers.{n}.attention.key": "layers.{n}.attn.Wqkv[1/3]",
        "layers.{n}.attention.value": "layers.{n}.attn.Wqkv[2/3]",
        "layers.{n}.attention.output": "layers.{n}.attn.Wo",
        "layers.{n}.feed_forward_norm": "layers.{n}.mlp_norm",
        "layers.{n}.feed_forward.gate": "layers.{n}.mlp.Wi[0/2]",
        "layers.{n}.feed_forward.up": "layers.{n}.mlp.Wi[1/2]",
        "layers.{n}.feed_forward.down": "layers.{n}.mlp.Wo",
        "final_norm": "final_norm",
    },
    head_weights={
        "text-classification": _HEAD,
        "token-classification": {**_HEAD, "crf.transitions": "crf.transitions"},
        "question-answering": _HEAD,
        "fill-mask": {"dense": "head.dense", "norm": "head.norm", "bias": "decoder.bias"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "ModernBertForSequenceClassification",
        "token-classification": "ModernBertForTokenClassification",
        "question-answering": "ModernBertForQuestionAnswering",
        "fill-mask": "ModernBertForMaskedLM",
        "sentence-embedding": "ModernBertModel",
    },
    base_architecture="ModernBertModel",
    decoder_weights=("decoder.weight",),
    # The sizes below base are those of Ettin's encoders (Weller et al., arXiv:2507.11412): 17, 32 and 68 million.
    sizes={
        "tiny": _size(7, 256, 384),
        "mini": _size(10, 384, 576),
        "small": _size(19, 512, 768),
        "base": _size(22, 768, 1152),
        "large": _size(28, 1024, 2624),
    },
    ignored_weights=r"(head|classifier|decoder|crf)\..*",
)
