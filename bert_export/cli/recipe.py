"""The flags of `bert-export train` that become `TrainSettings`."""

from collections.abc import Callable
from typing import Any

import click

__all__ = ["recipe_options"]

_OPTIONS = (
    click.option("--epochs", type=int, default=3, show_default=True),
    click.option("--batch-size", type=int, default=32, show_default=True),
    click.option(
        "--accumulate",
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


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of all settings, which the command gets as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
