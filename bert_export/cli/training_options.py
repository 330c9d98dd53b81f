"""The flags of training that become `TrainSettings` and a `Placement`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _ParamType = click.ParamType[int | str]
else:  # generic in recent releases only
    _ParamType = click.ParamType

__all__ = ["placement_options", "recipe_options"]


class _Devices(_ParamType):
    """A number, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto":
            return "auto"
        return click.IntRange(min=1).convert(value, param, ctx)


_OPTIONS = (
    click.option("--epochs", type=int, default=3, show_default=True),
    click.option("--batch-size", type=int, default=32, show_default=True, help="Examples in the batch of one process."),
    click.option(
        "--accumulate",
        "gradient_accumulation_steps",
        type=int,
        default=1,
        show_default=True,
        help="Batches that make one step: as one of their joint size, in the memory of one.",
    ),
    click.option("--lr", type=float, default=1e-4, show_default=True, help="Peak learning rate."),
    click.option(
        "--layer-lr-decay",
        type=float,
        default=1.0,
        show_default=True,
        help="Factor on the learning rate for each layer further below the head, e.g. 0.9; 1 is off.",
    ),
    click.option("--warmup-ratio", type=float, default=0.1, show_default=True),
    click.option("--weight-decay", type=float, default=0.01, show_default=True),
    click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Longest gradient of a step."),
    click.option("--max-tokens", type=int, help="Longest training sequence."),
    click.option("--patience", type=int, help="Stop after so many epochs without a better dev metric."),
    click.option(
        "--label-smoothing",
        type=float,
        default=0.0,
        show_default=True,
        help="Share of a label that is spread over all labels.",
    ),
    click.option(
        "--class-weights",
        type=click.Choice(["balanced"]),
        help="Weight classes in the loss by the inverse of their frequency.",
    ),
    click.option(
        "--sort-by-length/--no-sort-by-length",
        help="Batches of texts of like length: less padding, other batches.",
    ),
    click.option(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        help="Compute layers twice instead of keeping what they computed: less memory, slower.",
    ),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
        default="auto",
        show_default=True,
        help="auto takes bf16 mixed precision where this processor has it and it measures faster; fp16 needs CUDA.",
    ),
)

_PLACEMENT = (
    click.option(
        "--devices",
        type=_Devices(),
        help="Processes on this machine, each with a GPU where there is CUDA and with --batch-size of its own; auto is "
        "every GPU, and 1 on the CPU. Default: 1, or what torchrun has started.",
    ),
    click.option("--nodes", type=click.IntRange(min=1), help="Machines. Default: 1, or those of torchrun."),
    click.option(
        "--strategy",
        type=click.Choice(["auto", "ddp", "fsdp"]),
        default="auto",
        show_default=True,
        help="How processes share the model: each has a copy (ddp, auto), or a part of the weights (fsdp).",
    ),
)


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of a `Placement`, which the command gets as keyword arguments."""
    for option in reversed(_PLACEMENT):
        command = option(command)
    return command


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of all settings, which the command gets as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
