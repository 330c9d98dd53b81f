"""The processes of a run: started and joined by Lightning, and what they tell each other besides gradients."""

import atexit
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, distributed

from bert_models.errors import TrainingError
from bert_models.training.distributed.placement import Placement
from bert_models.training.silence_lightning import quiet
from bert_runtime.errors import BertError

__all__ = ["SINGLE_PROCESS", "ProcessGroup", "join_processes", "no_progress"]

Result = TypeVar("Result")

_LONGEST_WAIT = timedelta(days=30)
"""For what one process does while the others wait, such as tokenizing a corpus; one that ends is noticed at once."""


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """One process's view of all that train together; alone it waits for nobody."""

    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    rank: int = 0
    """From 0 over all machines. The first process alone writes, prints and decides."""
    local_rank: int = 0
    """From 0 on this machine."""
    group: Any = None
    """What objects are exchanged over: a group of its own, on the CPU also where tensors are on GPUs."""

    @property
    def world_size(self) -> int:
        """How many there are."""
        return self.devices * self.nodes

    @property
    def is_rank_zero(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether each holds a share of the parameters only."""
        return self.world_size > 1 and self.strategy == "fsdp"

    @property
    def seed_key(self) -> tuple[int, ...]:
        """What makes this process's random numbers its own; nothing in the first, which draws as one that is alone."""
        return (self.rank,) if self.rank else ()

    def threads(self, cores: int) -> int:
        """Threads for this process where `cores` may be kept busy by all those on this machine."""
        return max(1, cores // self.devices)

    def trainer_options(self) -> dict[str, Any]:
        """What Lightning's Trainer is told of them."""
        options: dict[str, Any] = {"accelerator": _accelerator(), "devices": self.devices}
        if self.world_size == 1:
            return options
        strategy: Any = "ddp"
        if self.is_sharded:
            strategy = ModelParallelStrategy(self.world_size, 1, save_distributed_checkpoint=False)
        # The loaders give every process its own part.
        return options | {"num_nodes": self.nodes, "strategy": strategy, "use_distributed_sampler": False}

    def describe(self, batch_size: int, accumulate: int) -> dict[str, Any]:
        """For reports; `batch_size` is that of one process, `global_batch` the sequences or pairs of one step."""
        strategy = None if self.world_size == 1 else "fsdp" if self.is_sharded else "ddp"
        return {
            "accelerator": _accelerator(),
            "devices": self.devices,
            "nodes": self.nodes,
            "strategy": strategy,
            "global_batch": batch_size * accumulate * self.world_size,
        }

    def shard_indices(self, count: int) -> list[int]:
        """The numbers below `count` that fall to this process: every `world_size`-th, from its rank.

        All have equally many, which sharded models need: where numbers run out, they begin again at 0.
        """
        rounds = -(-count // self.world_size)
        return [number % count for number in range(self.rank, rounds * self.world_size, self.world_size)]

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """All leave the block, or all raise when one has: what it raised there, a `TrainingError` elsewhere.

        Inside there must be nothing that waits for the other processes.
        """
        if self.world_size == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
        found: list[str | None] = [None] * self.world_size
        distributed.all_gather_object(found, _message(own), group=self.group)
        if own is not None:
            raise own
        for rank, message in enumerate(found):
            if message is not None:
                raise TrainingError(message if rank == 0 else f"process {rank} of {self.world_size}: {message}")

    def from_rank_zero(self, function: Callable[[], Result]) -> Result:
        """What `function` returns in the first process, which alone calls it; its errors are raised in all."""
        found: list[Any] = [None]
        with self.sync_errors():
            if self.is_rank_zero:
                found = [function()]
        if self.world_size > 1:
            distributed.broadcast_object_list(found, group=self.group)
        return found[0]

    def local_rank_zero_first(self, function: Callable[[], Result]) -> Result:
        """What `function` returns, called by one process of each machine first: the others find what it has kept."""
        found: list[Result] = []
        for turn in (self.local_rank == 0, self.local_rank > 0):
            with self.sync_errors():
                if turn:
                    found.append(function())
        return found[0]

    def gather(self, value: Result) -> list[Result]:
        """The values of all processes by rank, in the first; nothing in the others."""
        if self.world_size == 1:
            return [value]
        found: list[Any] | None = [None] * self.world_size if self.is_rank_zero else None
        distributed.gather_object(value, found, group=self.group)
        return found or []

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sums over all processes, in all of them; of a tensor where the model is."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values


SINGLE_PROCESS = ProcessGroup()
"""The one process of an ordinary run."""


@contextmanager
def join_processes(placement: Placement) -> Iterator[ProcessGroup]:
    """The processes of a run, which all enter the block; an error in the first one ends those that it has started.

    Lightning starts what torchrun has not: every further process runs the command of this one again, from its
    beginning. They stay until this one ends, and further calls are answered by the same ones. Raises `TrainingError`
    where one of them has ended.
    """
    here = placement.resolve()
    assert isinstance(here.devices, int)
    assert here.nodes is not None
    if here.devices * here.nodes == 1:
        yield SINGLE_PROCESS
        return
    fabric = _launched(here.devices, here.nodes)
    # Gloo's threads must have ended before this process does: one that loses its peer meanwhile aborts it. Lightning
    # sees to NCCL's alone.
    atexit.register(_leave)
    try:
        yield ProcessGroup(
            devices=here.devices,
            nodes=here.nodes,
            strategy=here.strategy,
            rank=fabric.global_rank,
            local_rank=fabric.local_rank,
            group=distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT),
        )
    except BaseException as error:
        started = getattr(fabric.strategy.launcher, "procs", ())
        # At the very end: Lightning kills this process, too, soon after one that it has started ended with an error.
        for process in started:
            atexit.register(process.kill)
        if isinstance(error, RuntimeError) and (ended := _ended(started)):
            raise TrainingError(
                f"{ended}, and what it said of it is above; with --resume the run goes on from where it was saved last"
            ) from error
        raise


def _leave() -> None:
    """Ends what joins this process to the others, where it has not ended yet."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _ended(started: Sequence["subprocess.Popen[bytes]"], patience_s: float = 1.0) -> str:
    """Which process has ended without having been asked to, and with which code; empty if none has."""
    limit = time.monotonic() + patience_s
    while time.monotonic() < limit:
        for number, process in enumerate(started, start=1):
            if process.poll():
                return f"process {number} of this machine ended with code {process.returncode}"
        time.sleep(0.05)
    return ""


def _launched(devices: int, nodes: int) -> Fabric:
    """Starts the other processes, where that is not done, and meets them.

    They inherit that interrupts are blocked here meanwhile: Ctrl-C, which a terminal sends to all, reaches the first
    process alone, and it is what ends the others.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with quiet():
            fabric = Fabric(accelerator=_accelerator(), devices=devices, num_nodes=nodes, strategy="ddp")
            fabric.launch()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return fabric


def no_progress(stage: str) -> None:
    """The progress that a process reports which is not the first."""


def _accelerator() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _message(error: Exception | None) -> str | None:
    if error is None:
        return None
    return str(error) if isinstance(error, BertError) else f"{type(error).__name__}: {error}"
