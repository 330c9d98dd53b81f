"""Keep the most important neurons of every feed-forward block."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bert_models.errors import CompressionError
from bert_models.model import TaskModel

__all__ = ["keep_neurons", "most_important"]


def most_important(importance: Sequence[Tensor], width: int) -> list[Tensor]:
    """Choose `width` neurons of each block.

    Args:
        importance: for each feed-forward block the importance of its neurons, float [intermediate_size].
        width: number of neurons to keep in every block.

    Returns:
        For each block the indices of the most important neurons, ascending, int64 [width].
    """
    return [block.topk(width).indices.sort().values for block in importance]


def keep_neurons(model: TaskModel, neurons: Sequence[Tensor]) -> TaskModel:
    """Copy a model without the other neurons of its feed-forward blocks, in evaluation mode.

    A neuron is a row of the first projections (`up`, and `gate` if there is one) and a column of the last one (`down`).
    All blocks keep equally many, so that `intermediate_size` says it.

    Args:
        model: the model to copy from.
        neurons: for each block of parameters the indices of the neurons to keep, int64 [width].

    Raises:
        CompressionError: there are not as many lists as blocks, or they have different lengths or none.
    """
    num_blocks = len(model.encoder.layers)
    widths = {len(block) for block in neurons}
    if len(neurons) != num_blocks or len(widths) != 1 or not min(widths):
        raise CompressionError(
            f"expected neurons of {num_blocks} feed-forward blocks, equally many of each, found {sorted(widths)} of "
            f"{len(neurons)}"
        )
    student = TaskModel(replace(model.config, intermediate_size=widths.pop()), model.task)
    tensors = model.state_dict()
    for index, block in enumerate(neurons):
        for name, tensor in tensors.items():
            if name.startswith(f"encoder.layers.{index}.feed_forward."):
                tensors[name] = _selected(name, tensor, block)
    student.load_state_dict(tensors)
    return student.eval()


def _selected(name: str, tensor: Tensor, neurons: Tensor) -> Tensor:
    """Return the part of a feed-forward parameter that belongs to some neurons."""
    if name.endswith(".down.bias"):
        return tensor
    return torch.index_select(tensor, 1 if name.endswith(".down.weight") else 0, neurons)
