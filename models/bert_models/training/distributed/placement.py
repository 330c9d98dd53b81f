"""Where a run computes: one process or many, on one machine or several."""

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
"""`ddp` keeps a copy of the model in every process, `fsdp` a share of it; `auto` is `ddp`."""

_OF_SEVERAL_NODES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""Environment variables without which Lightning cannot find the other machines, where torchrun has not set its own."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How many processes a run has and how they share the model. Another placement of the same recipe is the same run.

    Every process computes batches of its own, so the batch of a step is the recipe's times the processes.
    """

    devices: int | Literal["auto"] | None = None
    """Processes on each machine, with a GPU each where there is CUDA. `auto` is every GPU that torch sees, and one
    process on the CPU; `None` is one, or as many as torchrun has started."""
    nodes: int | None = None
    """Machines; `None` is one, or as many as torchrun has started on."""
    strategy: str = "auto"
    """One of `STRATEGIES`; alone, a process has nothing to share."""

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
        """The same with numbers, of this machine and of what has started the process.

        Raises `TrainingError` for more GPUs than there are, for numbers that are not torchrun's, and for several
        machines that do not know of each other.
        """
        if distributed.is_available() and distributed.is_torchelastic_launched():
            return self._of_torchrun(int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else None
        devices = (gpus or 1) if self.devices == "auto" else self.devices or 1
        nodes = self.nodes or 1
        if gpus is not None and devices > gpus:
            raise TrainingError(f"expected at most {gpus} devices, which is how many GPUs torch sees, found {devices}")
        if nodes > 1 and (missing := [name for name in _OF_SEVERAL_NODES if name not in os.environ]):
            raise TrainingError(
                f"{nodes} nodes: {', '.join(missing)} not set; start the command with torchrun on each of them: "
                f"torchrun --nnodes {nodes} --nproc-per-node {devices} --rdzv-backend c10d "
                "--rdzv-endpoint HOST:PORT -m bert_export.cli …"
            )
        return replace(self, devices=devices, nodes=nodes)

    def _of_torchrun(self, world_size: int, devices: int) -> "Placement":
        nodes = world_size // devices
        if self.devices not in (None, "auto", devices) or self.nodes not in (None, nodes):
            raise TrainingError(
                f"torchrun has started {devices} processes on each of {nodes} nodes, found devices {self.devices} and "
                f"nodes {self.nodes}; leave both out"
            )
        return replace(self, devices=devices, nodes=nodes)


DEFAULT_PLACEMENT = Placement()
"""One, or what torchrun has started."""


def settings_identity(settings: OptimizationSettings, world_size: int) -> dict[str, Any]:
    """Return the settings that must match for a run to be resumed.

    Batch sizes are compared over all processes, so that a run may be resumed on another number of them.
    """
    values = settings.to_dict()
    batch_size = values.pop("batch_size")
    return {**values, "batch_size of all processes": batch_size * world_size}
