"""Choosing the arithmetic of training by measuring it on this machine."""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.training.data import TensorBatch
from bert_models.training.objectives import Objective
from bert_runtime.machine import has_instruction_set

__all__ = ["ChosenPrecision", "check_precision", "choose_precision", "fastest_precision"]

LightningPrecision = Literal["32-true", "bf16-mixed", "16-mixed"]

_LIGHTNING_NAMES: dict[str, LightningPrecision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

_MEASURED = ("fp32", "bf16")
"""What `auto` chooses from; fp16 can lose small gradients and large activations, and is taken only when asked for."""


class ChosenPrecision(NamedTuple):
    """`fp32`, `bf16` or `fp16`, with the seconds that one step took in each where both were tried."""

    name: str
    seconds_per_step: dict[str, float]

    def tell(self, progress: Callable[[str], None]) -> None:
        """Says what was measured, if anything was, and warns of arithmetic that this machine only imitates."""
        if self.name == "bf16" and not _computes_bf16():
            progress(
                "training in bf16, which this processor has no instructions for and imitates, many times slower than "
                "fp32; take --precision auto"
            )
        if self.seconds_per_step:
            measured = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in self.seconds_per_step.items())
            progress(f"training in {self.name}: one step takes {measured}")

    @property
    def lightning_name(self) -> LightningPrecision:
        """What Lightning's Trainer calls it."""
        return _LIGHTNING_NAMES[self.name]


def _computes_bf16() -> bool:
    """Whether there is CUDA, or a processor with instructions for bf16."""
    return torch.cuda.is_available() or has_instruction_set("bf16")


def check_precision(requested: str, *, sharded: bool = False) -> None:
    """Raises `TrainingError` for a precision that this machine does not train in, or not with a sharded model."""
    if requested == "fp16" and sharded:
        raise TrainingError("precision fp16 is not for the strategy fsdp; take bf16, fp32 or auto, or the strategy ddp")
    if requested == "fp16" and not torch.cuda.is_available():
        raise TrainingError("precision fp16 needs CUDA, and torch finds no CUDA device; take bf16, fp32 or auto")


def choose_precision(requested: str, model: TaskModel, batch: TensorBatch, objective: Objective) -> ChosenPrecision:
    """The precision of fine-tuning, see `fastest_precision`."""
    return fastest_precision(
        requested, model, batch[:4], lambda parts: objective.loss(model, model(*parts[:3]), parts[3])
    )


def fastest_precision(
    requested: str, model: nn.Module, batch: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]
) -> ChosenPrecision:
    """The precision asked for, or for `auto` the faster one of those that this processor computes natively.

    `loss` computes what is minimised from a batch that is where the model is.
    """
    check_precision(requested)
    if requested != "auto":
        return ChosenPrecision(requested, {})
    if not _computes_bf16():
        return ChosenPrecision("fp32", {})
    seconds = {name: _seconds_per_step(model, batch, loss, bf16=name == "bf16") for name in _MEASURED}
    return ChosenPrecision(min(seconds, key=lambda name: seconds[name]), seconds)


def _seconds_per_step(
    model: nn.Module,
    batch: Sequence[Tensor],
    loss: Callable[[Sequence[Tensor]], Tensor],
    *,
    bf16: bool,
    repeats: int = 3,
) -> float:
    """The fastest of a few forward and backward passes, after one that warms up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).train()
    arrays = [tensor.to(device) for tensor in batch]
    fastest = float("inf")
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            value = loss(arrays)
        value.backward()  # type: ignore[no-untyped-call]
        if device == "cuda":
            torch.cuda.synchronize()
        if repeat:
            fastest = min(fastest, time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
    return fastest
