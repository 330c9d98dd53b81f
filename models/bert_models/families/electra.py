"""ELECTRA (Clark et al., arXiv:2003.10555): discriminator and generator, with a projection after narrow embeddings."""

from dataclasses import replace

from bert_models.families.bert import BERT

__all__ = ["ELECTRA"]

ELECTRA = replace(
    BERT,
    name="electra",
    prefix="electra.",
    defaults={"classifier_activation": "gelu"},
    config_keys={**BERT.config_keys, "embedding_size": "embedding_size"},
    encoder_weights={**BERT.encoder_weights, "embeddings.projection": "embeddings_project"},
    head_weights={
        "text-classification": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "sentence-embedding": {"layers.{n}": "dense.{n}"},
    },
    architectures={
        "text-classification": "ElectraForSequenceClassification",
        "sentence-embedding": "ElectraModel",
    },
    base_architecture="ElectraModel",
    ignored_weights=(
        r"(electra\.)?embeddings\.position_ids"
        r"|(generator_predictions|generator_lm_head|discriminator_predictions|classifier|qa_outputs)\..*"
    ),
)
