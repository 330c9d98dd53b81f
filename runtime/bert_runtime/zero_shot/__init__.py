"""Zero-shot classification: labels that are chosen when the model runs, by a model of natural language inference."""

from bert_runtime.zero_shot.classifier import ZeroShotClassifier
from bert_runtime.zero_shot.hypotheses import DEFAULT_TEMPLATE
from bert_runtime.zero_shot.result import ZeroShotClassification

__all__ = ["DEFAULT_TEMPLATE", "ZeroShotClassification", "ZeroShotClassifier"]
