"""RoBERTa (Liu et al., arXiv:1907.11692) and checkpoints of its architecture: XLM-RoBERTa and CamemBERT.

BERT's encoder with positions counted after the padding, a single segment, and heads of its own.
"""

from dataclasses import replace

from bert_models.families.base import Family
from bert_models.families.bert import BERT

__all__ = ["CAMEMBERT", "ROBERTA", "XLM_ROBERTA"]

ROBERTA = replace(
    BERT,
    name="roberta",
    prefix="roberta.",
    defaults={"positions": "after_padding", "layer_norm_eps": 1e-5, "pad_token_id": 1},
    head_weights={
        "text-classification": {"dense": "classifier.dense", "output": "classifier.out_proj"},
        "sentence-embedding": {"layers.{n}": "dense.{n}"},
    },
    architectures={
        "text-classification": "RobertaForSequenceClassification",
        "sentence-embedding": "RobertaModel",
    },
    base_architecture="RobertaModel",
    ignored_weights=(
        r"(roberta\.)?(embeddings\.position_ids|pooler\.dense\.(weight|bias))|(lm_head|classifier|qa_outputs)\..*"
    ),
)


def _renamed(name: str, prefix: str) -> Family:
    """RoBERTa under another `model_type` and other class names."""
    architectures = {task: each.replace("Roberta", prefix) for task, each in ROBERTA.architectures.items()}
    return replace(ROBERTA, name=name, architectures=architectures, base_architecture=f"{prefix}Model")


XLM_ROBERTA = _renamed("xlm-roberta", "XLMRoberta")
CAMEMBERT = _renamed("camembert", "Camembert")
