"""`bert-export train`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, drop_unset, input_option
from bert_export.cli.output import print_next, print_training_report
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import progress_printer
from bert_export.cli.training_options import checkpoint_output_option, fine_tuning_options, pop_placement, run_options
from bert_runtime.tasks import TASKS
from bert_runtime.tasks.reranking import RELEVANCE_ACTIVATIONS
from bert_runtime.tasks.sentence_embedding import POOLINGS
from bert_runtime.tasks.text_classification import PROBLEM_TYPES

__all__ = ["train"]


task_option = option_group("Task")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export train --base all-MiniLM-L6-v2 --train train.csv --dev dev.csv \\",
        "    --output intents",
        "# Entities in CoNLL files",
        "bert-export train --task token-classification --base checkpoint \\",
        "    --train train.conll --dev dev.conll --output entities --epochs 5",
    ],
)
@task_option(
    "--task",
    type=click.Choice([name for name, task in TASKS.items() if task.has_labels]),
    default="text-classification",
    show_default=True,
    help="Task to train for.",
)
@input_option("--base", type=CHECKPOINT, required=True, help="Folder or hub id (org/name@revision) to start from.")
@input_option(
    "--train",
    "train_file",
    type=PATH,
    required=True,
    help="Labelled training file: JSONL, CSV, TSV, CoNLL, CoNLL-U or SQuAD JSON; may be compressed (.gz).",
)
@input_option(
    "--dev",
    "dev_file",
    type=PATH,
    help="Labelled file that the best epoch is selected on; without it, rows of the training file are held out.",
)
@checkpoint_output_option
@task_option(
    "--problem-type",
    type=click.Choice(PROBLEM_TYPES),
    show_default="single_label",
    help="text-classification: one label per text, any number of labels (a list, or comma-separated names), or a "
    "number in the column score.",
)
@task_option("--crf/--no-crf", default=None, help="token-classification: train a CRF over the labels.")
@task_option("--bio/--no-bio", default=None, help="token-classification: predict valid BIO sequences only.")
@task_option(
    "--pooling",
    type=click.Choice(POOLINGS),
    show_default="that of the base",
    help="sentence-embedding: how token vectors are pooled into one.",
)
@task_option(
    "--activation",
    type=click.Choice(RELEVANCE_ACTIVATIONS),
    show_default="identity where grades are learned as logits, else sigmoid",
    help="rerank: whether scores are probabilities (sigmoid) or logits (identity).",
)
@task_option(
    "--prune-tokens",
    metavar="SCHEDULE",
    show_default="that of the base",
    help="Drop tokens of low importance between layers, in training as in the exported model: layer:share, such as "
    "2:0.5,4:0.25, or none. For tasks that read the first token alone, such as text-classification.",
)
@columns_option
@fine_tuning_options
@run_options()
def train(
    task: str,
    base: str,
    train_file: Path,
    dev_file: Path | None,
    output: Path,
    problem_type: str | None,
    crf: bool | None,
    bio: bool | None,
    pooling: str | None,
    activation: str | None,
    prune_tokens: str | None,
    columns: dict[str, str] | None,
    resume: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fine-tune a checkpoint on a labelled file.

    The output is the checkpoint of the epoch with the best dev metric.
    """
    from bert_models.training import TrainSettings, fine_tune

    placement = pop_placement(options)
    task_settings = drop_unset(
        {"problem_type": problem_type, "crf": crf, "bio": bio, "pooling": pooling, "activation": activation}
    )
    report = fine_tune(
        task, base, train_file, dev_file, output, TrainSettings(**options),
        task_settings=task_settings, columns=columns, prune_tokens=prune_tokens, placement=placement,
        resume=resume, force=force, progress=progress_printer(),
    )  # fmt: skip
    print_training_report(report, "epochs", output, as_json=as_json)
    print_next("bert-export", "export", output, "BUNDLE")
