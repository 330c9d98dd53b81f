"""Models of which every process holds a share: PyTorch's fully sharded data parallel training."""

from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from bert_models.layers import EncoderLayer

__all__ = ["full_state_dict", "shard"]

_STEPS = ("training_step", "validation_step")


def shard(module: pl.LightningModule) -> None:
    """Splits each encoder layer's parameters over the processes, and all others together; a second call does nothing.

    A layer is whole while it computes, the rest during a whole step: embeddings and what shares them, heads and chains
    are used in many places. All processes must have the same weights before.
    """
    if isinstance(module, FSDPModule):
        return
    mesh = module.device_mesh["data_parallel"]  # type: ignore[index]
    for each in [each for each in module.modules() if isinstance(each, EncoderLayer)]:
        fully_shard(each, mesh=mesh)
    fully_shard(module, mesh=mesh)
    wrapped: Any = module
    for step in _STEPS:
        register_fsdp_forward_method(wrapped, step)


def full_state_dict(module: pl.LightningModule) -> dict[str, Tensor]:
    """The state dict of a sharded module put together, in the first process; empty in the others. All must call it."""
    weights: dict[str, Any] = get_model_state_dict(
        module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return weights
