"""Training with Lightning: fine-tuning a checkpoint on a labelled file."""

from bert_models.training.fine_tuning import fine_tune
from bert_models.training.place import REPORT_NAME
from bert_models.training.placement import Placement
from bert_models.training.settings import TrainSettings

__all__ = ["REPORT_NAME", "Placement", "TrainSettings", "fine_tune"]
