"""BERT (Devlin et al., arXiv:1810.04805): learned positions, two segments, a tanh pooler."""

from bert_models.families.base import Family

__all__ = ["BERT"]

BERT = Family(
    name="bert",
    prefix="bert.",
    config_keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "activation": "hidden_act",
        "layer_norm_eps": "layer_norm_eps",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "classifier_dropout": "classifier_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_token_id",
    },
    fixed_config={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    encoder_weights={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.segment": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{n}.attention.query": "encoder.layer.{n}.attention.self.query",
        "layers.{n}.attention.key": "encoder.layer.{n}.attention.self.key",
        "layers.{n}.attention.value": "encoder.layer.{n}.attention.self.value",
        "layers.{n}.attention.output": "encoder.layer.{n}.attention.output.dense",
        "layers.{n}.attention_norm": "encoder.layer.{n}.attention.output.LayerNorm",
        "layers.{n}.feed_forward.up": "encoder.layer.{n}.intermediate.dense",
        "layers.{n}.feed_forward.down": "encoder.layer.{n}.output.dense",
        "layers.{n}.feed_forward_norm": "encoder.layer.{n}.output.LayerNorm",
    },
    head_weights={
        "text-classification": {"dense": "bert.pooler.dense", "output": "classifier"},
        "next-sentence-prediction": {"dense": "bert.pooler.dense", "output": "cls.seq_relationship"},
        "sentence-embedding": {"layers.{n}": "dense.{n}"},
    },
    architectures={
        "text-classification": "BertForSequenceClassification",
        "next-sentence-prediction": "BertForNextSentencePrediction",
        "sentence-embedding": "BertModel",
    },
    base_architecture="BertModel",
    ignored_weights=r"(bert\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))|(cls|classifier|qa_outputs)\..*",
)
