"""Errors of models, checkpoints and training. `bert_runtime.errors` draws the whole error tree."""

from bert_runtime.errors import BertError

__all__ = ["CheckpointError", "ConfigError", "TrainingError"]


class ConfigError(BertError):
    """A model configuration is invalid or not supported."""


class CheckpointError(BertError):
    """A directory is not a checkpoint, or its files do not match each other."""


class TrainingError(BertError):
    """Training, pre-training or distillation cannot start or continue."""
