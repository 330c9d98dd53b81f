"""ELECTRA (Clark et al., arXiv:2003.10555): discriminator and generator, with a projection after narrow embeddings."""

from dataclasses import replace

from bert_models.families.base import EMBEDDING_WEIGHTS
from bert_models.families.bert import BERT, bert_size

__all__ = ["ELECTRA"]

_COMMON = {"vocab_size": 30522, "max_positions": 512, "type_vocab_size": 2}

ELECTRA = replace(
    BERT,
    name="electra",
    prefix="electra.",
    defaults={"classifier_activation": "gelu", "classifier_input_dropout": True, "prediction_activation": "gelu"},
    config_keys={**BERT.config_keys, "embedding_size": "embedding_size"},
    encoder_weights={**BERT.encoder_weights, "embeddings.projection": "embeddings_project"},
    head_weights={
        "text-classification": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "token-classification": BERT.head_weights["token-classification"],
        "question-answering": BERT.head_weights["question-answering"],
        "fill-mask": {
            "dense": "generator_predictions.dense",
            "norm": "generator_predictions.LayerNorm",
            "bias": "generator_lm_head.bias",
        },
        "replaced-token-detection": {
            "dense": "discriminator_predictions.dense",
            "output": "discriminator_predictions.dense_prediction",
        },
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "ElectraForSequenceClassification",
        "token-classification": "ElectraForTokenClassification",
        "question-answering": "ElectraForQuestionAnswering",
        "fill-mask": "ElectraForMaskedLM",
        "replaced-token-detection": "ElectraForPreTraining",
        "sentence-embedding": "ElectraModel",
    },
    base_architecture="ElectraModel",
    pretraining_architecture=None,
    decoder_weights=("generator_lm_head.weight",),
    sizes={
        "small": {**bert_size(12, 256), **_COMMON, "embedding_size": 128},
        "base": {**bert_size(12, 768), **_COMMON},
        "large": {**bert_size(24, 1024), **_COMMON},
    },
    ignored_weights=(
        r"(electra\.)?embeddings\.position_ids"
        r"|(generator_predictions|generator_lm_head|discriminator_predictions|classifier|qa_outputs|crf)\..*"
    ),
)
