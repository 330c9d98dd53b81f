"""Choose the arithmetic of training, by measuring a step on this machine if asked to."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from bert_models.errors import TrainingError
from bert_models.model import TaskModel
from bert_models.training.data import TensorBatch
from bert_models.training.objectives import Objective
from bert_runtime.machine import has_instruction_set

__all__ = ["ChosenPrecision", "check_precision", "choose_precision", "fastest_precision", "num_measured"]

LightningPrecision = Literal["32-true", "bf16-mixed", "16-mixed"]

_LIGHTNING_NAMES: dict[str, LightningPrecision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

_AUTO_CANDIDATES = ("fp32", "bf16")
"""Precisions that `auto` chooses from, the preferred one first.

fp16 is used on request only: small gradients underflow, large activations overflow.
"""

_TIME_LIMIT_S = 15.0
"""Time of a measurement, unless two steps of each candidate take longer."""

_MEASURED_STEPS = 3
"""Steps of each candidate after one for warming up: one at least, the others if time allows. The first step does not
count: bf16's of all-mpnet-base-v2 took 11 s while another process started, and fp32 was chosen."""

_CPU_TOKENS = 512
"""Padded tokens of a measured step on a CPU. On two cores with a load of 6, one step of BERT-base in each precision
took 65 s with 32 sequences of 128 tokens, and 33 s with 4; the choice was the same."""

_MIN_SPEEDUP = 1.1
"""Least speedup of bf16 over fp32 for bf16 to be chosen: below, noise would decide, and with it the rounding of all
results."""


class ChosenPrecision(NamedTuple):
    """Precision of a run: `fp32`, `bf16` or `fp16`, and the seconds per measured step of the candidates that fit."""

    name: str
    seconds_per_step: dict[str, float]

    def report(self, report_progress: Callable[[str], None]) -> None:
        """Report the measured times, if any, and warn of bf16 on a machine that emulates it."""
        if self.name == "bf16" and not _has_bf16():
            report_progress(
                "training in bf16, which this processor has no instructions for and emulates, many times slower than "
                "fp32; take --precision auto"
            )
        if self.seconds_per_step:
            measured = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in self.seconds_per_step.items())
            excess = [f"; {name} needs more memory" for name in _AUTO_CANDIDATES if name not in self.seconds_per_step]
            report_progress(f"training in {self.name}: a measured step takes {measured}{''.join(excess)}")

    @property
    def lightning_name(self) -> LightningPrecision:
        """The `precision` argument of Lightning's Trainer."""
        return _LIGHTNING_NAMES[self.name]


def _has_bf16() -> bool:
    """Return whether there is CUDA, or a processor with bf16 instructions."""
    return torch.cuda.is_available() or has_instruction_set("bf16")


def check_precision(requested: str, *, sharded: bool = False) -> None:
    """Check that this machine trains in `requested` precision.

    Args:
        requested: one of `settings.TRAINING_PRECISIONS`.
        sharded: whether parameters are sharded (FSDP), which fp16's gradient scaling does not support here.

    Raises:
        TrainingError: fp16 without CUDA or with sharded parameters.
    """
    if requested == "fp16" and sharded:
        raise TrainingError("precision fp16 is not for the strategy fsdp; take bf16, fp32 or auto, or the strategy ddp")
    if requested == "fp16" and not torch.cuda.is_available():
        raise TrainingError("precision fp16 needs CUDA, and torch finds no CUDA device; take bf16, fp32 or auto")


def num_measured(items: int, tokens: int) -> int:
    """Return how many of a batch's items a measurement should take: all on a GPU, fewer on a CPU.

    Args:
        items: items of the batch, at least one.
        tokens: tokens of the batch, padding included.
    """
    return items if torch.cuda.is_available() else min(items, max(2, _CPU_TOKENS * items // tokens))


def choose_precision(requested: str, model: TaskModel, batch: TensorBatch, objective: Objective) -> ChosenPrecision:
    """Return the precision of a fine-tuning run, see `fastest_precision`."""

    def loss(tensors: Sequence[Tensor]) -> Tensor:
        *inputs, targets = tensors
        return objective.loss(model, model(*inputs), targets)

    inputs_and_targets = (batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.targets)
    return fastest_precision(requested, model, inputs_and_targets, loss)


def fastest_precision(
    requested: str, model: nn.Module, batch: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]
) -> ChosenPrecision:
    """Return the requested precision, or for `auto` bf16 if its forward and backward passes clearly beat fp32's.

    The measurement takes `_TIME_LIMIT_S` at most, or two steps in each precision if these take longer.

    Args:
        requested: one of `settings.TRAINING_PRECISIONS`.
        model: the model to train; a measurement moves it to the device and back, and zeroes its gradients.
        batch: tensors that `loss` takes.
        loss: computes the loss of the batch, float32 [], with tensors on the model's device.

    Raises:
        TrainingError: see `check_precision`; or the GPU has no memory for a step in either precision.
    """
    check_precision(requested)
    if requested != "auto":
        return ChosenPrecision(requested, {})
    if not _has_bf16():
        return ChosenPrecision("fp32", {})
    seconds = _measure_steps(model, batch, loss)
    return ChosenPrecision(_faster(seconds), seconds)


def _faster(seconds: Mapping[str, float]) -> str:
    """Return the fastest candidate if it is clearly faster than the preferred one that fits, which wins ties."""
    preferred = next(name for name in _AUTO_CANDIDATES if name in seconds)
    fastest = min(seconds, key=lambda name: seconds[name])
    return fastest if seconds[fastest] * _MIN_SPEEDUP <= seconds[preferred] else preferred


def _measure_steps(
    model: nn.Module, batch: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]
) -> dict[str, float]:
    """Return the seconds of the fastest forward and backward pass in each candidate precision.

    Candidates take turns, so that what else the machine does slows all of them. The first pass of each warms up. Those
    that the GPU has no memory for are left out.

    Raises:
        TrainingError: no candidate fits.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = next(model.parameters()).device
    fastest: dict[str, float] = {}
    try:
        with suppress(torch.OutOfMemoryError):
            model.to(device).train()
            fastest = _fastest_steps(model, [tensor.to(device) for tensor in batch], loss, device)
    finally:
        model.to(before)  # sharded training would keep it on the first GPU, beside all shards
        if device == "cuda":
            torch.cuda.empty_cache()
    if not fastest:
        raise TrainingError(
            f"precision auto: the GPU has no memory for a step in {' or '.join(_AUTO_CANDIDATES)}; "
            "lower --batch-size, or fine-tune with --gradient-checkpointing"
        )
    return fastest


def _fastest_steps(
    model: nn.Module, tensors: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor], device: str
) -> dict[str, float]:
    """Return the seconds of the fastest pass in each candidate precision that fits the memory."""
    start = time.perf_counter()
    candidates = [name for name in _AUTO_CANDIDATES if _time_step(model, tensors, loss, device, name) < math.inf]
    fastest: dict[str, float] = {}
    for _ in range(_MEASURED_STEPS):
        if fastest and time.perf_counter() - start + sum(fastest.values()) > _TIME_LIMIT_S:
            break
        for name in candidates:
            seconds = _time_step(model, tensors, loss, device, name)
            fastest[name] = min(seconds, fastest.get(name, seconds))
    return {name: seconds for name, seconds in fastest.items() if seconds < math.inf}


def _time_step(
    model: nn.Module, tensors: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor], device: str, name: str
) -> float:
    """Return the seconds of one forward and backward pass in precision `name`, infinity where memory ends."""
    try:
        return _run_step(model, tensors, loss, device, name)
    except torch.OutOfMemoryError:
        seconds = math.inf
    # Not in the handler, whose traceback holds the tensors of the step.
    model.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.empty_cache()
    return seconds


def _run_step(
    model: nn.Module, tensors: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor], device: str, name: str
) -> float:
    """Return the seconds of one forward and backward pass in precision `name`."""
    start = time.perf_counter()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=name == "bf16"):
        value = loss(tensors)
    value.backward()  # type: ignore[no-untyped-call]
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds
