"""Distillation: a small student learns what a large teacher answers."""

from bert_models.distillation.language_model import distill_language_model
from bert_models.distillation.run import distill
from bert_models.distillation.settings import CORPUS_DISTILLATION, TASK_DISTILLATION, DistillationSettings

__all__ = ["CORPUS_DISTILLATION", "TASK_DISTILLATION", "DistillationSettings", "distill", "distill_language_model"]
