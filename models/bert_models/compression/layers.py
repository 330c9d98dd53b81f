"""Keep a subset of a model's layers."""

from collections.abc import Sequence
from dataclasses import replace

from bert_models.config import EncoderConfig
from bert_models.errors import CompressionError
from bert_models.families import FAMILIES
from bert_models.model import TaskModel

__all__ = ["is_savable", "keep_layers"]


def keep_layers(model: TaskModel, layers: Sequence[int]) -> TaskModel:
    """Copy embeddings, head and some of the layers into a new model, in evaluation mode.

    Args:
        model: the model to copy from.
        layers: indices of the layers to keep, in ascending order.

    Raises:
        CompressionError: there are no such layers, or a pre-norm model loses its first one, whose attention has no
            LayerNorm of its own.
    """
    config = model.config
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < config.num_layers:
        raise CompressionError(f"expected ascending indices of {config.num_layers} layers to keep, found {layers}")
    if config.norm_first and layers[0] != 0:
        raise CompressionError(
            f"the first layer of {config.family} cannot be dropped: expected layer 0, found {layers}"
        )
    student = TaskModel(_with_layers(config, layers), model.task)
    encoder, source = student.encoder, model.encoder
    encoder.embeddings.load_state_dict(source.embeddings.state_dict())
    for name in ("position_bias", "relative_positions", "final_norm"):
        target, origin = getattr(encoder, name), getattr(source, name)
        if target is not None:
            target.load_state_dict(origin.state_dict())
    for position, layer in enumerate(layers):
        encoder.layers[encoder.order[position]].load_state_dict(source.layers[source.order[layer]].state_dict())
    student.head.load_state_dict(model.head.state_dict())
    return student.eval()


def is_savable(config: EncoderConfig, layers: Sequence[int]) -> bool:
    """Return whether a model with these layers of another one has a `config.json` in its family's format.

    A family whose `config.json` has a rule in place of the kind of each layer can write only subsets that follow it.
    """
    kept, family = _with_layers(config, layers), FAMILIES[config.family]
    return family.parse_config(family.dump_config(kept), "config.json") == kept


def _with_layers(config: EncoderConfig, layers: Sequence[int]) -> EncoderConfig:
    """Keep some layers, and all tokens: a schedule of token pruning numbers the layers that were there.

    Several parameter groups become one per layer: their layers need not stay equal.
    """
    groups = config.num_layer_groups
    local = tuple(index for index, layer in enumerate(layers) if layer in config.local_layers)
    return replace(
        config,
        num_layers=len(layers),
        num_layer_groups=groups if groups in (None, 1) else len(layers),
        local_layers=local,
        local_rope_theta=config.local_rope_theta if local else None,
        token_pruning=None,
        sliding_window=config.sliding_window if local else None,
    )
