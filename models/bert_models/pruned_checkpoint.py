"""Open checkpoints with another schedule of token pruning than theirs."""

from dataclasses import replace

from bert_models.checkpoint import Checkpoint
from bert_models.pruning_schedule import TokenPruning

__all__ = ["NO_PRUNING", "with_token_pruning"]

NO_PRUNING = "none"
"""Schedule that keeps all tokens."""


def with_token_pruning(source: Checkpoint, schedule: str | None) -> Checkpoint:
    """Return a checkpoint with a schedule of token pruning in its configuration.

    Args:
        source: The checkpoint.
        schedule: Such as `2:0.5,4:0.25`, see `TokenPruning`; `NO_PRUNING`; or `None` for the checkpoint's own.

    Raises:
        ConfigError: The schedule is malformed, or does not fit the encoder.
    """
    if schedule is None:
        return source
    pruning = None if schedule == NO_PRUNING else TokenPruning.parse(schedule)
    return replace(source, config=replace(source.config, token_pruning=pruning))
