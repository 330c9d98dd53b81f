"""Cascades: a small model answers what it is sure of, and a large one the rest."""

from bert_runtime.cascade.loading import read_task
from bert_runtime.cascade.manifest import CascadeManifest, is_cascade
from bert_runtime.cascade.model import Cascade
from bert_runtime.cascade.results import CascadeClassification, CascadeMultiLabelClassification, answered_by

__all__ = [
    "Cascade",
    "CascadeClassification",
    "CascadeManifest",
    "CascadeMultiLabelClassification",
    "answered_by",
    "is_cascade",
    "read_task",
]
