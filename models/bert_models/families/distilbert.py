"""DistilBERT (Sanh et al., arXiv:1910.01108): BERT without segments and pooler, with other weight names."""

from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.bert import BERT

__all__ = ["DISTILBERT"]

DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    defaults={
        "type_vocab_size": 0,
        "classifier_activation": "relu",
        "token_classifier_dropout": False,
        "question_answering_dropout": 0.1,
        "attention_output_dropout": False,
    },
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
        "question_answering_dropout": "qa_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    fixed_config={},
    encoder_weights={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{n}.attention.query": "transformer.layer.{n}.attention.q_lin",
        "layers.{n}.attention.key": "transformer.layer.{n}.attention.k_lin",
        "layers.{n}.attention.value": "transformer.layer.{n}.attention.v_lin",
        "layers.{n}.attention.output": "transformer.layer.{n}.attention.out_lin",
        "layers.{n}.attention_norm": "transformer.layer.{n}.sa_layer_norm",
        "layers.{n}.feed_forward.up": "transformer.layer.{n}.ffn.lin1",
        "layers.{n}.feed_forward.down": "transformer.layer.{n}.ffn.lin2",
        "layers.{n}.feed_forward_norm": "transformer.layer.{n}.output_layer_norm",
    },
    head_weights={
        "text-classification": {"dense": "pre_classifier", "output": "classifier"},
        "token-classification": BERT.head_weights["token-classification"],
        "question-answering": BERT.head_weights["question-answering"],
        "fill-mask": {"dense": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "DistilBertForSequenceClassification",
        "token-classification": "DistilBertForTokenClassification",
        "question-answering": "DistilBertForQuestionAnswering",
        "fill-mask": "DistilBertForMaskedLM",
        "sentence-embedding": "DistilBertModel",
    },
    base_architecture="DistilBertModel",
    decoder_weights=("vocab_projector.weight",),
    sizes={"base": {**BERT.sizes["base"], "num_layers": 6, "type_vocab_size": 0}},
    ignored_weights=r"(vocab_\w+|pre_classifier|classifier|qa_outputs|crf)\..*|(distilbert\.)?embeddings\.position_ids",
)
