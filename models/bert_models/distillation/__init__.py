"""Knowledge distillation: train a small student on the outputs of a large teacher (Hinton et al., arXiv:1503.02531)."""

from bert_models.distillation.language_model import distill_language_model
from bert_models.distillation.run import distill
from bert_models.distillation.settings import CORPUS_DISTILLATION, TASK_DISTILLATION, DistillationSettings

__all__ = ["CORPUS_DISTILLATION", "TASK_DISTILLATION", "DistillationSettings", "distill", "distill_language_model"]
