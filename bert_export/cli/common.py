"""What the commands share: options, progress on stderr, output on stdout."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_runtime.tasks.token_classification import AGGREGATIONS

__all__ = [
    "CHECKPOINT",
    "PATH",
    "bundle_argument",
    "columns_option",
    "device_option",
    "given",
    "is_rank_zero",
    "json_option",
    "precision_option",
    "print_json",
    "print_training_report",
    "progress_printer",
    "table",
    "task_options",
    "threads_option",
]


PATH = click.Path(path_type=Path)

if TYPE_CHECKING:
    _ParamType = click.ParamType[dict[str, str]]
    _WordsType = click.ParamType[tuple[str, ...]]
    _NumbersType = click.ParamType[tuple[float, ...]]
else:  # generic in recent releases only
    _ParamType = _WordsType = _NumbersType = click.ParamType


class _Columns(_ParamType):
    """`ours=theirs,…` as a dictionary."""

    name = "OURS=THEIRS,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        pairs = [pair.partition("=") for pair in str(value).split(",")]
        if not all(ours.strip() and theirs.strip() for ours, _, theirs in pairs):
            self.fail(f"expected pairs such as text=sentence,label=category, found {value!r}", param, ctx)
        return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


class _Words(_WordsType):
    """Names between commas."""

    name = "WORD,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        words = value if isinstance(value, tuple) else tuple(word.strip() for word in str(value).split(","))
        if not all(words):
            self.fail(f"expected words between commas, found {value!r}", param, ctx)
        return words


class _Numbers(_NumbersType):
    """Numbers between commas."""

    name = "NUMBER,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"expected numbers between commas, found {value!r}", param, ctx)


CHECKPOINT = click.STRING
"""A folder or a hub id. No path type: that would make `./name`, which is a folder, into `name`, which may be an id."""

bundle_argument = click.argument("bundle", type=PATH)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
columns_option = click.option(
    "--columns",
    type=_Columns(),
    help="The file's names for our fields, e.g. text=sentence,label=category; numbers from 0 where it has no header.",
)
precision_option = click.option(
    "--precision",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "fp32", "fp16", "int8"]),
    help="The variant to run; auto takes the bundle's default or what tune found here, and FP16 on CUDA.",
)
device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="[auto|cpu|cuda[:N]|tensorrt[:N]]",
    help="Where to run; auto takes CUDA where the bundle is made for it and it is there.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads per operator; by default what tune found here, or the cores granted.",
)


_OPTIONS = (
    click.option("--aggregation", type=click.Choice(AGGREGATIONS), help="How labels of tokens become entities."),
    click.option("--bio/--no-bio", default=None, help="Allow only sequences of labels that are BIO."),
    click.option(
        "--top-k", type=int, help="Answers to give (question-answering), or tokens for each mask (fill-mask)."
    ),
    click.option("--candidates", type=_Words(), help="Words that a mask may stand for, between commas."),
    click.option("--thresholds", type=_Numbers(), help="One for each label, between commas (multi-label)."),
    click.option("--threshold", type=float, help="Least probability that counts (multi-label, replaced tokens)."),
    click.option("--max-answer-tokens", type=int, help="Longest answer to a question."),
    click.option("--n-best", type=int, help="Candidates that the probability of answers is shared among."),
    click.option("--no-answer/--always-answer", default=None, help="Whether a question may have no answer."),
    click.option("--no-answer-threshold", type=float, help="Score from which on a question has no answer."),
)


def task_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of all tasks, which the command gets as keyword arguments; see `given`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def progress_printer() -> Callable[[str], None]:
    """A progress callback that prints each stage on stderr with the seconds since the start."""
    start = time.monotonic()

    def report(stage: str) -> None:
        click.echo(f"{time.monotonic() - start:6.1f} s  {stage}", err=True)

    return report


def is_rank_zero() -> bool:
    """Whether this process prints: of those that torchrun or Lightning have started together, the first one does."""
    # RANK alone is set by schedulers that have started no such processes.
    names = ("RANK",) if "TORCHELASTIC_RUN_ID" in os.environ else ("LOCAL_RANK", "NODE_RANK")
    return all(os.environ.get(name, "0") in ("0", "") for name in names)


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_training_report(report: Mapping[str, Any], part: str, output: Path, *, as_json: bool) -> None:
    """Prints a training run's report, of which `part` has an entry per measurement; the first process alone does."""
    if not is_rank_zero():
        return
    if as_json:
        print_json(report)
        return
    click.echo(table([list(report[part][0]), *(list(each.values()) for each in report[part])]))
    if report.get("stopped_early"):
        click.echo(f"stopped early: no better {report['metric']} in {report['settings']['patience']} epochs")
    if "best" in report:
        click.echo(f"best: epoch {report['best']['epoch']}, {report['metric']} {report['best'][report['metric']]:.4f}")
    click.echo(f"wrote {output}")


def table(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as text, columns aligned: numbers right, everything else left."""
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    numeric = [[isinstance(cell, int | float) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, kinds, strict=True)
        )
        for row, kinds in zip(cells, numeric, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)
