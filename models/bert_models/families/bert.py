"""BERT (Devlin et al., arXiv:1810.04805): absolute positions, two segments, a tanh pooler."""

from typing import Any

from bert_models.families.base import EMBEDDING_WEIGHTS, Family

__all__ = ["BERT", "bert_size"]


def bert_size(num_layers: int, hidden_size: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a size in BERT's proportions: heads of width 64, feed-forward 4 × hidden_size wide."""
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // 64,
        "intermediate_size": 4 * hidden_size,
        **more,
    }


_COMMON = {"vocab_size": 30522, "max_positions": 512, "type_vocab_size": 2}
"""With the uncased vocabulary. The cased one has 28,996 tokens: `BERT.preset("base", vocab_size=28996)`."""

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
        "token-classification": {"output": "classifier", "crf.transitions": "crf.transitions"},
        "question-answering": {"output": "qa_outputs"},
        "fill-mask": {
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
        },
        "next-sentence-prediction": {"dense": "bert.pooler.dense", "output": "cls.seq_relationship"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "BertForSequenceClassification",
        "token-classification": "BertForTokenClassification",
        "question-answering": "BertForQuestionAnswering",
        "fill-mask": "BertForMaskedLM",
        "next-sentence-prediction": "BertForNextSentencePrediction",
        "sentence-embedding": "BertModel",
    },
    base_architecture="BertModel",
    pretraining_architecture="BertForPreTraining",
    decoder_weights=("cls.predictions.decoder.weight",),
    # The sizes below base are those of Turc et al., arXiv:1908.08962.
    sizes={
        "tiny": bert_size(2, 128, **_COMMON),
        "mini": bert_size(4, 256, **_COMMON),
        "small": bert_size(4, 512, **_COMMON),
        "medium": bert_size(8, 512, **_COMMON),
        "base": bert_size(12, 768, **_COMMON),
        "large": bert_size(24, 1024, **_COMMON),
    },
    ignored_weights=r"(bert\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))|(cls|classifier|qa_outputs|crf)\..*",
)
