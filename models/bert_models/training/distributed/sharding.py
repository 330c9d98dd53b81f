"""Shard a model's parameters over processes: PyTorch's fully sharded data parallel (FSDP, arXiv:2304.11277)."""

from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from bert_models.layers import EncoderLayer

__all__ = ["full_state_dict", "shard_module"]

_FORWARD_METHODS = ("training_step", "validation_step")


def shard_module(module: pl.LightningModule) -> None:
    """Shard each encoder layer over the processes, and all other parameters together; do nothing the second time.

    A layer is gathered while it computes, the rest for a whole step, because embeddings, heads and CRFs are used in
    many parts of a step. All processes must have the same weights before.
    """
    if isinstance(module, FSDPModule):
        return
    mesh = module.device_mesh["data_parallel"]  # type: ignore[index]
    for layer in [layer for layer in module.modules() if isinstance(layer, EncoderLayer)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    sharded: Any = module
    for method in _FORWARD_METHODS:
        register_fsdp_forward_method(sharded, method)


def full_state_dict(module: pl.LightningModule) -> dict[str, Tensor]:
    """Gather a sharded module's state dict in rank zero, on the CPU; empty elsewhere. All processes must call it."""
    weights: dict[str, Any] = get_model_state_dict(
        module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return weights
