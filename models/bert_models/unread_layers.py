"""Leave out the layers above the highest one that a feature-extraction model reads."""

from dataclasses import replace

from torch import nn

from bert_models.config import EncoderConfig
from bert_models.model import TaskModel
from bert_runtime.tasks import FeatureExtraction

__all__ = ["drop_unread_layers"]


def drop_unread_layers(model: TaskModel) -> None:
    """Remove the layers that a feature-extraction model does not read, in place; other models stay as they are.

    The configuration then has the layers that are left. The final normalization of pre-norm encoders belongs to the
    last layer's hidden state, and goes with it.
    """
    task, encoder = model.task, model.encoder
    if not isinstance(task, FeatureExtraction) or task.depth >= model.config.num_layers:
        return
    model.config = _with_depth(model.config, task.depth)
    encoder.order = encoder.order[: task.depth]
    encoder.layers = nn.ModuleList(list(encoder.layers)[: encoder.order[-1] + 1])
    encoder.final_norm = None
    if not model.config.local_layers:
        encoder.local_rotary, encoder.sliding_window = None, None


def _with_depth(config: EncoderConfig, depth: int) -> EncoderConfig:
    """Return the configuration of the first `depth` layers; of shared ones, the groups that they have."""
    local = tuple(index for index in config.local_layers if index < depth)
    groups = config.num_layer_groups
    if groups is not None:
        groups = (depth - 1) * groups // config.num_layers + 1
    return replace(
        config,
        num_layers=depth,
        num_layer_groups=groups,
        local_layers=local,
        sliding_window=config.sliding_window if local else None,
    )
