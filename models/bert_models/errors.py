"""Errors of models, checkpoints and training. `bert_runtime.errors` draws the whole error tree."""

from bert_runtime.errors import BertError

__all__ = ["CheckpointError", "CompressionError", "ConfigError", "TrainingError", "TrainingInterruptedError"]


class ConfigError(BertError):
    """A model configuration is invalid or not supported."""


class CheckpointError(BertError):
    """A directory is not a checkpoint, or its files do not match each other."""


class TrainingError(BertError):
    """Training, pre-training or distillation cannot start or continue."""


class UntrainableError(TrainingError):
    """A model learnt nothing: the loss is not a number, or its metric is not defined in any epoch."""


class TrainingInterruptedError(TrainingError):
    """Ctrl-C or a signal ended a training run. The message says whether it can be resumed."""


class CompressionError(BertError):
    """A model cannot be made smaller as asked, or not without losing more than is allowed."""
