"""BERT-family models in PyTorch: encoder, task heads, checkpoints, training and distillation."""

from bert_models.checkpoint import Checkpoint, load_model, open_checkpoint
from bert_models.config import EncoderConfig
from bert_models.errors import CheckpointError, ConfigError, TrainingError
from bert_models.families import FAMILIES
from bert_models.model import TaskModel
from bert_models.saving import save_model

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
