"""RoBERTa (Liu et al., arXiv:1907.11692) and checkpoints of its architecture: XLM-RoBERTa and CamemBERT.

BERT's encoder with positions counted after the padding, a single segment, and heads of its own.
"""

from dataclasses import replace

from bert_models.families.base import EMBEDDING_WEIGHTS, Family
from bert_models.families.bert import BERT, width

__all__ = ["CAMEMBERT", "ROBERTA", "XLM_ROBERTA"]

_COMMON = {"vocab_size": 50265, "max_positions": 514, "type_vocab_size": 1}

ROBERTA = replace(
    BERT,
    name="roberta",
    prefix="roberta.",
    defaults={
        "positions": "after_padding",
        "prediction_activation": "gelu",
        "layer_norm_eps": 1e-5,
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
    output_matrices=("lm_head.decoder.weight",),
    sizes={"base": width(12, 768, **_COMMON), "large": width(24, 1024, **_COMMON)},
    ignored_weights=(
        r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))|(lm_head|classifier|qa_outputs|crf)\..*"
    ),
)


def _renamed(name: str, prefix: str, vocab_size: int) -> Family:
    """RoBERTa under another `model_type`, other class names, and with another vocabulary."""
    architectures = {task: each.replace("Roberta", prefix) for task, each in ROBERTA.architectures.items()}
    sizes = {size: {**values, "vocab_size": vocab_size} for size, values in ROBERTA.sizes.items()}
    return replace(ROBERTA, name=name, architectures=architectures, base_architecture=f"{prefix}Model", sizes=sizes)


XLM_ROBERTA = _renamed("xlm-roberta", "XLMRoberta", 250002)
CAMEMBERT = _renamed("camembert", "Camembert", 32005)
