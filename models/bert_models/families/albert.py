"""ALBERT (Lan et al., arXiv:1909.11942): factorized embeddings, and layers that share parameters."""

from dataclasses import replace

from bert_models.families.base import EMBEDDING_WEIGHTS
from bert_models.families.bert import BERT, bert_size

__all__ = ["ALBERT"]

_COMMON = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "num_layer_groups": 1,
    "max_positions": 512,
    "type_vocab_size": 2,
    "activation": "gelu_new",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}

_LAYER = "encoder.albert_layer_groups.{n}.albert_layers.0"

ALBERT = replace(
    BERT,
    name="albert",
    prefix="albert.",
    always_projects=True,
    defaults={
        "activation": "gelu_new",
        "num_layer_groups": 1,
        "next_sentence_dropout": True,
        "feed_forward_dropout": False,
    },
    config_keys={
        **BERT.config_keys,
        "embedding_size": "embedding_size",
        "num_layer_groups": "num_hidden_groups",
        "classifier_dropout": "classifier_dropout_prob",
    },
    fixed_config={**BERT.fixed_config, "inner_group_num": 1},
    encoder_weights={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.projection": "encoder.embedding_hidden_mapping_in",
        "layers.{n}.attention.query": f"{_LAYER}.attention.query",
        "layers.{n}.attention.key": f"{_LAYER}.attention.key",
        "layers.{n}.attention.value": f"{_LAYER}.attention.value",
        "layers.{n}.attention.output": f"{_LAYER}.attention.dense",
        "layers.{n}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "layers.{n}.feed_forward.up": f"{_LAYER}.ffn",
        "layers.{n}.feed_forward.down": f"{_LAYER}.ffn_output",
        "layers.{n}.feed_forward_norm": f"{_LAYER}.full_layer_layer_norm",
    },
    head_weights={
        "text-classification": {"dense": "albert.pooler", "output": "classifier"},
        "token-classification": BERT.head_weights["token-classification"],
        "question-answering": BERT.head_weights["question-answering"],
        "fill-mask": {"dense": "predictions.dense", "norm": "predictions.LayerNorm", "bias": "predictions.bias"},
        "next-sentence-prediction": {"dense": "albert.pooler", "output": "sop_classifier.classifier"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "AlbertForSequenceClassification",
        "token-classification": "AlbertForTokenClassification",
        "question-answering": "AlbertForQuestionAnswering",
        "fill-mask": "AlbertForMaskedLM",
        "next-sentence-prediction": "AlbertForPreTraining",
        "sentence-embedding": "AlbertModel",
    },
    base_architecture="AlbertModel",
    pretraining_architecture="AlbertForPreTraining",
    decoder_weights=("predictions.decoder.weight",),
    sizes={
        "base": bert_size(12, 768, **_COMMON),
        "large": bert_size(24, 1024, **_COMMON),
        "xlarge": bert_size(24, 2048, **_COMMON, num_heads=16),
        "xxlarge": bert_size(12, 4096, **_COMMON),
    },
    ignored_weights=(
        r"(albert\.)?(embeddings\.position_ids|pooler\.(weight|bias))|(predictions|sop_classifier|classifier|qa_outputs|crf)\..*"
    ),
)
