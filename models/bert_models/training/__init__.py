"""Fine-tune a checkpoint on a labelled file, with Lightning."""

from bert_models.training.distributed.placement import Placement
from bert_models.training.fine_tuning import fine_tune
from bert_models.training.run_dir import REPORT_NAME
from bert_models.training.settings import TrainSettings

__all__ = ["REPORT_NAME", "Placement", "TrainSettings", "fine_tune"]
