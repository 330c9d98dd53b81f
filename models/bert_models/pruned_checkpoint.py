"""Open checkpoints with another schedule of token pruning than theirs."""

from dataclasses import replace

from bert_models.checkpoint import Checkpoint
from bert_models.first_token import check_prunable
from bert_models.model import TaskModel
from bert_models.pruning_schedule import TokenPruning

__all__ = ["NO_PRUNING", "pruning_record", "set_token_pruning", "with_token_pruning"]

NO_PRUNING = "none"
"""Schedule that keeps all tokens."""


def with_token_pruning(source: Checkpoint, schedule: str | None) -> Checkpoint:
    """Return a checkpoint with a schedule of token pruning in its configuration.

    Args:
        source: the checkpoint.
        schedule: such as `2:0.5,4:0.25`, see `TokenPruning`; `NO_PRUNING`; or `None` for the checkpoint's own.

    Raises:
        ConfigError: the schedule is malformed, or does not fit the encoder.
    """
    if schedule is None:
        return source
    pruning = None if schedule == NO_PRUNING else TokenPruning.parse(schedule)
    return replace(source, config=replace(source.config, token_pruning=pruning))


def pruning_record(source: Checkpoint) -> dict[str, str]:
    """Return the schedule of token pruning as reports state it; nothing where all tokens stay."""
    pruning = source.config.token_pruning
    return {} if pruning is None else {"token_pruning": str(pruning)}


def set_token_pruning(model: TaskModel, pruning: TokenPruning | None) -> TaskModel:
    """Let a model prune tokens, or keep all, in place, and return it.

    Raises:
        ConfigError: the schedule does not fit the encoder, or the task reads every token.
    """
    config = replace(model.config, token_pruning=pruning)
    check_prunable(config, model.task)
    model.config, model.encoder.token_pruning = config, pruning
    return model
