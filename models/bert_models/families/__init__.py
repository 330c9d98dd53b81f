"""The supported model families, each defined as a table in its own file."""

from bert_models.families.albert import ALBERT
from bert_models.families.base import Family
from bert_models.families.bert import BERT
from bert_models.families.deberta import DEBERTA_V2
from bert_models.families.distilbert import DISTILBERT
from bert_models.families.electra import ELECTRA
from bert_models.families.ernie import ERNIE
from bert_models.families.gte import GTE
from bert_models.families.modernbert import MODERNBERT
from bert_models.families.mpnet import MPNET
from bert_models.families.nomic_bert import NOMIC_BERT
from bert_models.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

__all__ = ["FAMILIES", "MODEL_TYPES", "Family"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ALBERT, ELECTRA, MPNET, MODERNBERT, DEBERTA_V2, ERNIE,
        NOMIC_BERT, GTE,
    )
}  # fmt: skip
"""All families by name."""

MODEL_TYPES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in (family.name, *family.other_names)
}
"""All families by `model_type`."""
