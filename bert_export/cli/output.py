"""Output of the commands: results on stdout, advice on stderr."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bert_export.cli.terminal import print_table
from bert_runtime.tasks import Task

__all__ = ["is_rank_zero", "predict_arguments", "print_json", "print_next", "print_training_report"]


def is_rank_zero() -> bool:
    """Return whether this is the first of the processes that torchrun or Lightning started, the one that prints."""
    # Schedulers set RANK without starting further processes, so it counts under torchrun only.
    names = ("RANK",) if "TORCHELASTIC_RUN_ID" in os.environ else ("LOCAL_RANK", "NODE_RANK")
    return all(os.environ.get(name, "0") in ("0", "") for name in names)


def print_json(value: Any) -> None:
    """Print a JSON value on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_next(*words: object, why: str = "") -> None:
    """Print the command to go on with on stderr, in the first process of a distributed run only.

    Args:
        *words: its words; names in capitals stand for what the user has.
        why: what it is for.
    """
    if is_rank_zero():
        click.echo(f"next: {shlex.join(map(str, words))}{f'   # {why}' if why else ''}", err=True)


def predict_arguments(task: Task) -> list[str]:
    """Return what `bert-export predict BUNDLE` needs for a task besides options, in capitals."""
    if task.name == "question-answering":
        return ["--question", "QUESTION", "TEXT"]
    return ["TEXT", "--pair", "TEXT"] if task.name in ("next-sentence-prediction", "rerank") else ["TEXT"]


def print_training_report(report: Mapping[str, Any], measurements: str, output: Path, *, as_json: bool) -> None:
    """Print the report of a training run, in its first process only.

    Args:
        report: the report.
        measurements: key of the list of measurements, such as `epochs`.
        output: the checkpoint that was written.
        as_json: print the report as JSON instead of text.
    """
    if not is_rank_zero():
        return
    if as_json:
        from bert_models.files import finite_json

        print_json(finite_json(report))
        return
    rows = report[measurements]
    print_table([list(rows[0]), *(list(row.values()) for row in rows)], has_header=True)
    if report.get("stopped_early"):
        click.echo(f"stopped early: no better {report['metric']} in {report['settings']['patience']} epochs")
    if "best" in report:
        click.echo(f"best: epoch {report['best']['epoch']}, {report['metric']} {report['best'][report['metric']]:.4f}")
    click.echo(f"wrote {output}")
