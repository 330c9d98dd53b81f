"""`bert-export train`."""

from pathlib import Path
from typing import Literal

import click

from bert_export.cli.common import (
    CHECKPOINT,
    PATH,
    columns_option,
    json_option,
    print_training_report,
    progress_printer,
)
from bert_export.cli.config_file import config_option
from bert_export.cli.training_options import placement_options, recipe_options
from bert_runtime.tasks import TASKS
from bert_runtime.tasks.sentence_embedding import POOLINGS
from bert_runtime.tasks.text_classification import PROBLEM_TYPES

__all__ = ["train"]


@click.command()
@click.option(
    "--task",
    type=click.Choice(list(TASKS)),
    default="text-classification",
    show_default=True,
    help="What to train for.",
)
@click.option("--base", type=CHECKPOINT, required=True, help="Folder or hub id (org/name@revision) to start from.")
@click.option(
    "--train",
    "train_file",
    type=PATH,
    required=True,
    help="Labelled training file (JSONL, CSV, TSV, CoNLL, CoNLL-U, SQuAD JSON; .gz).",
)
@click.option("--dev", "dev_file", type=PATH, required=True, help="Labelled file that decides which epoch is best.")
@click.option("--output", type=PATH, required=True, help="Checkpoint to write.")
@click.option(
    "--problem-type",
    type=click.Choice(PROBLEM_TYPES),
    help="How text-classification reads a row: one label, any number of labels (a list, or names between commas), "
    "or a number in the column score. Default: single_label.",
)
@click.option("--crf/--no-crf", default=None, help="token-classification: train a linear chain over the labels.")
@click.option("--bio/--no-bio", default=None, help="token-classification: allow only sequences that are BIO.")
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    help="sentence-embedding: how token vectors become one; by default as the base does it.",
)
@columns_option
@recipe_options
@placement_options
@config_option
@click.option("--resume", is_flag=True, help="Go on from where an interrupted run was saved last.")
@click.option("--force", is_flag=True, help="Replace what an earlier run wrote.")
@json_option
def train(
    task: str,
    base: str,
    train_file: Path,
    dev_file: Path,
    output: Path,
    problem_type: str | None,
    crf: bool | None,
    bio: bool | None,
    pooling: str | None,
    columns: dict[str, str] | None,
    devices: int | Literal["auto"] | None,
    nodes: int | None,
    strategy: str,
    resume: bool,
    force: bool,
    as_json: bool,
    **recipe: int | float | str | None,
) -> None:
    """Fine-tune a checkpoint on a labelled file and keep the best epoch."""
    from bert_models.training import Placement, TrainSettings, fine_tune

    given = {"problem_type": problem_type, "crf": crf, "bio": bio, "pooling": pooling}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = TrainSettings(**recipe)  # type: ignore[arg-type] # click has checked the types
    report = fine_tune(
        task, base, train_file, dev_file, output, settings,
        task_settings=chosen, columns=columns, placement=Placement(devices=devices, nodes=nodes, strategy=strategy),
        resume=resume, force=force, progress=progress_printer(),
    )  # fmt: skip
    print_training_report(report, "epochs", output, as_json=as_json)
