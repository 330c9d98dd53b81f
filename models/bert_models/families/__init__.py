"""The families whose checkpoints this project reads and writes, each a table in a file of its own."""

from bert_models.families.base import Family
from bert_models.families.bert import BERT

__all__ = ["FAMILIES", "Family"]

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT,)}
"""Every family by its `model_type`."""
