"""ALBERT (Lan et al., arXiv:1909.11942): narrow embeddings, and layers that share their parameters."""

from dataclasses import replace

from bert_models.families.bert import BERT

__all__ = ["ALBERT"]

_LAYER = "encoder.albert_layer_groups.{n}.albert_layers.0"

ALBERT = replace(
    BERT,
    name="albert",
    prefix="albert.",
    always_projects=True,
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
        "next-sentence-prediction": {"dense": "albert.pooler", "output": "sop_classifier.classifier"},
        "sentence-embedding": {"layers.{n}": "dense.{n}"},
    },
    architectures={
        "text-classification": "AlbertForSequenceClassification",
        "next-sentence-prediction": "AlbertForPreTraining",
        "sentence-embedding": "AlbertModel",
    },
    base_architecture="AlbertModel",
    ignored_weights=(
        r"(albert\.)?(embeddings\.position_ids|pooler\.(weight|bias))|(predictions|sop_classifier|classifier|qa_outputs)\..*"
    ),
)
