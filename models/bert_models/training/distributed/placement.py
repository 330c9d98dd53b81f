"""Processes and machines of a run, and how they share the model."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import distributed

from bert_models.errors import TrainingError
from bert_models.training.settings import OptimizationSettings

__all__ = ["DEFAULT_PLACEMENT", "STRATEGIES", "Placement", "settings_identity"]

STRATEGIES = ("auto", "ddp", "fsdp")
"""Distributed strategies.

`ddp` keeps a copy of the model in every process (distributed data parallel, arXiv:2006.15704), `fsdp` a shard of it
(fully sharded data parallel, arXiv:2304.11277). `auto` is `ddp`.
"""

_MULTI_NODE_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""Environment variables that Lightning needs to find the other machines; torchrun sets its own."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Number of processes of a run, and how they share the model.

    A run may be resumed with another placement, if the batch size over all processes stays the same.

    Raises:
        TrainingError: a value is out of range; the message names all of them.
    """

    devices: int | Literal["auto"] | None = None
    """Processes per machine, each with its own GPU where there is CUDA.

    `auto` is every GPU that torch sees, or one process on the CPU; `None` is one, or as many as torchrun has started.
    """
    nodes: int | None = None
    """Machines; `None` is one, or as many as torchrun has started on."""
    strategy: str = "auto"
    """One of `STRATEGIES`; without effect for a single process."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise TrainingError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name in ("devices", "nodes"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                yield f"{name} must be at least 1, found {value}"
        if self.strategy not in STRATEGIES:
            yield f"strategy must be one of {', '.join(STRATEGIES)}, found {self.strategy!r}"

    def resolve(self) -> "Placement":
        """Return the placement with numbers in place of `auto` and `None`, from this machine or from torchrun.

        Raises:
            TrainingError: there are fewer GPUs than `devices`, torchrun has started other numbers, or several nodes
                are given without the environment variables that connect them.
        """
        if distributed.is_available() and distributed.is_torchelastic_launched():
            return self._from_torchrun(int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else None
        devices = (gpus or 1) if self.devices == "auto" else self.devices or 1
        nodes = self.nodes or 1
        if gpus is not None and devices > gpus:
            raise TrainingError(f"expected at most {gpus} devices, which is how many GPUs torch sees, found {devices}")
        if nodes > 1 and (missing := [name for name in _MULTI_NODE_VARIABLES if name not in os.environ]):
            raise TrainingError(
                f"{nodes} nodes: {', '.join(missing)} not set; start the command with torchrun on each of them: "
                f"torchrun --nnodes {nodes} --nproc-per-node {devices} --rdzv-backend c10d "
                "--rdzv-endpoint HOST:PORT -m bert_export.cli …"
            )
        return replace(self, devices=devices, nodes=nodes)

    def _from_torchrun(self, world_size: int, devices: int) -> "Placement":
        nodes = world_size // devices
        if self.devices not in (None, "auto", devices) or self.nodes not in (None, nodes):
            raise TrainingError(
                f"torchrun has started {devices} processes on each of {nodes} nodes, found devices {self.devices} and "
                f"nodes {self.nodes}; leave both out"
            )
        return replace(self, devices=devices, nodes=nodes)


DEFAULT_PLACEMENT = Placement()
"""One process, or those that torchrun has started."""


def settings_identity(settings: OptimizationSettings, world_size: int) -> dict[str, Any]:
    """Return the settings that must match for a run to be resumed.

    Batch sizes are compared over all processes, so that a run may be resumed on another number of them.
    """
    values = settings.to_dict()
    batch_size = values.pop("batch_size")
    return {**values, "batch_size of all processes": batch_size * world_size}
