"""Errors of the models, checkpoints and training; see `bert_runtime.errors` for the whole tree."""

from bert_runtime.errors import BertError

__all__ = ["CheckpointError", "ConfigError", "TrainingError"]


class ConfigError(BertError):
    """A model configuration that makes no sense or is not supported."""


class CheckpointError(BertError):
    """A directory is no checkpoint, or its parts do not fit together."""


class TrainingError(BertError):
    """Training cannot start or go on."""
