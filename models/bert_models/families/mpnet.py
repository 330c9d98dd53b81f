"""MPNet (Song et al., arXiv:2004.09297): RoBERTa with a bias of attention by relative position, and no segments."""

from dataclasses import replace

from bert_models.families.bert import BERT, bert_size
from bert_models.families.roberta import ROBERTA

__all__ = ["MPNET"]

_ATTENTION = "encoder.layer.{n}.attention"

MPNET = replace(
    ROBERTA,
    name="mpnet",
    prefix="mpnet.",
    defaults={**ROBERTA.defaults, "type_vocab_size": 0, "relative_buckets": 32},
    config_keys={
        **{
            name: key for name, key in BERT.config_keys.items() if name not in ("type_vocab_size", "classifier_dropout")
        },
        "relative_buckets": "relative_attention_num_buckets",
    },
    # transformers reads neither key: it computes 32 buckets, and positions after padding of id 1.
    fixed_config={"relative_attention_num_buckets": 32, "pad_token_id": 1},
    encoder_weights={
        **{name: key for name, key in BERT.encoder_weights.items() if name != "embeddings.segment"},
        "position_bias.table": "encoder.relative_attention_bias",
        "layers.{n}.attention.query": f"{_ATTENTION}.attn.q",
        "layers.{n}.attention.key": f"{_ATTENTION}.attn.k",
        "layers.{n}.attention.value": f"{_ATTENTION}.attn.v",
        "layers.{n}.attention.output": f"{_ATTENTION}.attn.o",
        "layers.{n}.attention_norm": f"{_ATTENTION}.LayerNorm",
    },
    architectures={task: name.replace("Roberta", "MPNet") for task, name in ROBERTA.architectures.items()},
    base_architecture="MPNetModel",
    sizes={"base": bert_size(12, 768, vocab_size=30527, max_positions=514, type_vocab_size=0)},
    ignored_weights=ROBERTA.ignored_weights.replace("roberta", "mpnet"),
)
