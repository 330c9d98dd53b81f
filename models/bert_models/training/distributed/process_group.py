"""The processes of a run: start them with Lightning, and exchange errors, objects and sums between them."""

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
from bert_models.training.silence_lightning import silence_lightning
from bert_runtime.errors import BertError

__all__ = ["SINGLE_PROCESS", "ProcessGroup", "join_processes", "no_progress"]

Result = TypeVar("Result")

_OBJECT_TIMEOUT = timedelta(days=30)
"""Maximum time that processes wait for one that works alone, such as tokenizing a corpus; a crash is noticed at once.
"""

_END_TIMEOUT_S = 1.0
"""Maximum time until a process that another lost its connection to has ended."""


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes that train together, as seen by one of them. With one process, no method waits."""

    devices: int = 1
    """Processes on each machine."""
    nodes: int = 1
    """Machines."""
    strategy: str = "auto"
    """One of `placement.STRATEGIES`."""
    rank: int = 0
    """Index of this process over all machines. Rank zero alone writes files, reports progress and decides."""
    local_rank: int = 0
    """Index of this process on its machine."""
    object_group: Any = None
    """torch's process group for the exchange of objects; it uses Gloo on the CPU, also where tensors are on GPUs."""

    @property
    def world_size(self) -> int:
        """Number of processes over all machines."""
        return self.devices * self.nodes

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a shard of the parameters only (FSDP)."""
        return self.world_size > 1 and self.strategy == "fsdp"

    @property
    def seed_key(self) -> tuple[int, ...]:
        """Seed key of this process's random numbers; empty for rank zero, which draws as a single process does."""
        return (self.rank,) if self.rank else ()

    def num_threads(self, cores: int) -> int:
        """Return the threads of this process, if all processes of this machine share `cores`."""
        return max(1, cores // self.devices)

    def trainer_options(self) -> dict[str, Any]:
        """Return the arguments of Lightning's `Trainer` that depend on the processes."""
        options: dict[str, Any] = {"accelerator": _accelerator(), "devices": self.devices}
        if self.world_size == 1:
            return options
        strategy: Any = "ddp"
        if self.is_sharded:
            strategy = ModelParallelStrategy(self.world_size, 1, save_distributed_checkpoint=False)
        # The loaders give every process its own part of the data.
        return options | {"num_nodes": self.nodes, "strategy": strategy, "use_distributed_sampler": False}

    def describe(self, batch_size: int, gradient_accumulation_steps: int) -> dict[str, Any]:
        """Return the `placement` entry of a report.

        `batch_size` is that of one process; `global_batch` counts the sequences (or pairs) of one optimizer step.
        """
        strategy = None if self.world_size == 1 else "fsdp" if self.is_sharded else "ddp"
        return {
            "accelerator": _accelerator(),
            "devices": self.devices,
            "nodes": self.nodes,
            "strategy": strategy,
            "global_batch": batch_size * gradient_accumulation_steps * self.world_size,
        }

    def shard_indices(self, count: int) -> list[int]:
        """Return this process's share of `range(count)`: every `world_size`-th index, starting from its rank.

        All shares have the same length, which sharded models need: at the end, indices are repeated from 0.
        """
        rounds = -(-count // self.world_size)
        return [index % count for index in range(self.rank, rounds * self.world_size, self.world_size)]

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Raise in all processes if one of them raises in the block: its own error there, a `TrainingError` elsewhere.

        The block must not wait for other processes.
        """
        if self.world_size == 1:
            yield
            return
        own_error: Exception | None = None
        try:
            yield
        except Exception as error:
            own_error = error
        messages: list[str | None] = [None] * self.world_size
        distributed.all_gather_object(messages, _message(own_error), group=self.object_group)
        if own_error is not None:
            raise own_error
        for rank, message in enumerate(messages):
            if message is not None:
                raise TrainingError(message if rank == 0 else f"process {rank} of {self.world_size}: {message}")

    def from_rank_zero(self, function: Callable[[], Result]) -> Result:
        """Call `function` in rank zero only, and return its result (or raise its error) in all processes."""
        result: list[Any] = [None]
        with self.sync_errors():
            if self.is_rank_zero:
                result = [function()]
        if self.world_size > 1:
            distributed.broadcast_object_list(result, group=self.object_group)
        return result[0]

    def local_rank_zero_first(self, function: Callable[[], Result]) -> Result:
        """Call `function` in every process, on each machine first in local rank zero, which may fill a cache."""
        results: list[Result] = []
        for is_turn in (self.local_rank == 0, self.local_rank > 0):
            with self.sync_errors():
                if is_turn:
                    results.append(function())
        return results[0]

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all processes by rank in rank zero, and an empty list elsewhere."""
        if self.world_size == 1:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.is_rank_zero else None
        distributed.gather_object(value, values, group=self.object_group)
        return values or []

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum `values` over all processes, in place; the tensor must be on the model's device."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values


SINGLE_PROCESS = ProcessGroup()
"""The group of a run that has one process."""


@contextmanager
def join_processes(placement: Placement) -> Iterator[ProcessGroup]:
    """Start the processes of a run; all of them enter the block.

    Lightning starts those that torchrun has not started: each runs the command of this process again, from its
    beginning. They live until this process ends, and further calls reuse them. An error in rank zero ends the
    processes that it has started.

    Raises:
        TrainingError: see `Placement.resolve`; or another process has ended.
    """
    resolved = placement.resolve()
    assert isinstance(resolved.devices, int)
    assert resolved.nodes is not None
    if resolved.devices * resolved.nodes == 1:
        yield SINGLE_PROCESS
        return
    fabric = _launch(resolved.devices, resolved.nodes)
    # Gloo's threads must have ended before this process does: one that loses its peer meanwhile aborts it. Lightning
    # ends NCCL's only.
    atexit.register(_destroy_process_group)
    try:
        yield ProcessGroup(
            devices=resolved.devices,
            nodes=resolved.nodes,
            strategy=resolved.strategy,
            rank=fabric.global_rank,
            local_rank=fabric.local_rank,
            object_group=distributed.new_group(backend="gloo", timeout=_OBJECT_TIMEOUT),
        )
    except BaseException as error:
        started = getattr(fabric.strategy.launcher, "procs", ())
        # At exit, not now: Lightning kills this process, too, soon after one that it has started ends with an error.
        for process in started:
            atexit.register(process.kill)
        if isinstance(error, RuntimeError) and (ended := _find_ended(started)):
            raise TrainingError(
                f"{ended}; its error is printed above; go on from the last save with --resume"
            ) from error
        raise


def _destroy_process_group() -> None:
    """Disconnect this process from the others if it still is connected."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _find_ended(started: Sequence["subprocess.Popen[bytes]"]) -> str:
    """Describe the process that has failed and its exit code; empty if none fails within `_END_TIMEOUT_S`."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while time.monotonic() < deadline:
        for number, process in enumerate(started, start=1):
            if process.poll():
                return f"process {number} of this machine ended with code {process.returncode}"
        time.sleep(0.05)
    return ""


def _launch(devices: int, nodes: int) -> Fabric:
    """Start the other processes if nobody has, and connect to them.

    SIGINT is blocked meanwhile, and the started processes inherit that: Ctrl-C, which a terminal sends to all,
    reaches rank zero only, which then ends the others.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with silence_lightning():
            fabric = Fabric(accelerator=_accelerator(), devices=devices, num_nodes=nodes, strategy="ddp")
            fabric.launch()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return fabric


def no_progress(message: str) -> None:
    """Ignore a progress message: the callback of processes other than rank zero."""


def _accelerator() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _message(error: Exception | None) -> str | None:
    if error is None:
        return None
    return str(error) if isinstance(error, BertError) else f"{type(error).__name__}: {error}"
