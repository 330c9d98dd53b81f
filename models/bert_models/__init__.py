"""The BERT family in PyTorch: encoder, heads, checkpoints and training."""

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint, save_model
from bert_models.config import EncoderConfig
from bert_models.errors import CheckpointError, ConfigError, TrainingError
from bert_models.families import FAMILIES
from bert_models.model import TaskModel

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "EncoderConfig",
    "TaskModel",
    "TrainingError",
    "load_model",
    "open_checkpoint",
    "save_model",
]
