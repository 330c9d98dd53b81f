"""RoBERTa (Liu et al., arXiv:1907.11692), and the families of its architecture.

These are XLM-RoBERTa (Conneau et al., arXiv:1911.02116) and CamemBERT (Martin et al., arXiv:1911.03894). They use
BERT's encoder with position ids that start at `pad_token_id + 1`, a single segment, and other heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.bert import BERT, bert_size
from bert_models.families.weight_layouts import renaming

__all__ = ["CAMEMBERT", "ROBERTA", "XLM_ROBERTA"]

# The published models' epsilon; transformers' default for a config.json without one is BERT's.
_COMMON = {"vocab_size": 50265, "max_positions": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}

ROBERTA = replace(
    BERT,
    name="roberta",
    prefix="roberta.",
    defaults={
        "positions": "after_padding",
        "classifier_input_dropout": True,
        "prediction_activation": "gelu",
        "pad_token_id": 1,
    },
    head_weights={
        "text-classification": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "token-classification": BERT.head_weights["token-classification"],
        "question-answering": BERT.head_weights["question-answering"],
        "fill-mask": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
        "sentence-embedding": EMBEDDING_WEIGHTS,
    },
    architectures={
        "text-classification": "RobertaForSequenceClassification",
        "token-classification": "RobertaForTokenClassification",
        "question-answering": "RobertaForQuestionAnswering",
        "fill-mask": "RobertaForMaskedLM",
        "sentence-embedding": "RobertaModel",
    },
    base_architecture="RobertaModel",
    pretraining_architecture=None,
    decoder_weights=("lm_head.decoder.weight",),
    sizes={"base": bert_size(12, 768, **_COMMON), "large": bert_size(24, 1024, **_COMMON)},
    ignored_weights=(
        r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))|(lm_head|classifier|qa_outputs|crf)\..*"
    ),
)


def _renamed(name: str, prefix: str, vocab_size: int) -> Family:
    """Return RoBERTa with another `model_type`, `transformers` class prefix and vocabulary size."""
    architectures = {task: name.replace("Roberta", prefix) for task, name in ROBERTA.architectures.items()}
    sizes = {size: {**values, "vocab_size": vocab_size} for size, values in ROBERTA.sizes.items()}
    return replace(ROBERTA, name=name, architectures=architectures, base_architecture=f"{prefix}Model", sizes=sizes)


_FLASH_ATTENTION = renaming(
    (
        (r"\bemb_ln\.", "embeddings.LayerNorm."),
        (r"\bencoder\.layers\.", "encoder.layer."),
        (r"\.mixer\.out_proj\.", ".attention.output.dense."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
        (r"\.norm1\.", ".attention.output.LayerNorm."),
        (r"\.norm2\.", ".output.LayerNorm."),
    )
)
"""Names of the FlashAttention repository's BERT, as in jina-reranker-v2."""


def _from_flash_attention(tensors: Mapping[str, Any], config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Split merged projections and rename the rest."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if ".mixer.Wqkv." in name and tensor.ndim and not len(tensor) % 3:
            for part, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                found[name.replace("mixer.Wqkv", f"attention.self.{part}")] = rows
        else:
            found[name] = tensor
    return _FLASH_ATTENTION(found, config_json)


XLM_ROBERTA = replace(_renamed("xlm-roberta", "XLMRoberta", 250002), canonical_weights=_from_flash_attention)
CAMEMBERT = _renamed("camembert", "Camembert", 32005)
