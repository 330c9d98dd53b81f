"""`bert-export distill`."""

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from bert_export.cli.corpus_options import corpus_options, read_corpus
from bert_export.cli.help import Decorator, ExampleCommand, option_group
from bert_export.cli.options import columns_option, drop_unset, input_option
from bert_export.cli.output import print_next, print_training_report
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import progress_printer
from bert_export.cli.training_options import (
    checkpoint_output_option,
    fine_tuning_options,
    pop_placement,
    pretraining_options,
    run_options,
)

__all__ = ["distill"]


model_option = option_group("Models")
loss_option = option_group("Loss")


@click.command(
    cls=ExampleCommand,
    examples=[
        "# A student with three of the teacher's layers",
        "bert-export distill --teacher intents --student 3 --train train.csv \\",
        "    --dev dev.csv --output small",
        "# A smaller language model, from raw text",
        "bert-export distill --teacher checkpoint --student mini \\",
        "    --corpus corpus.txt --output mini",
    ],
)
@model_option(
    "--teacher", type=CHECKPOINT, required=True, help="Folder or hub id of the trained checkpoint to imitate."
)
@model_option(
    "--student",
    required=True,
    help="How many of the teacher's layers to keep (such as 3), a size of its family for a new model (such as mini), "
    "or a checkpoint's folder or hub id.",
)
@input_option(
    "--train",
    "train_file",
    type=PATH,
    help="Training file, as for train; it needs no labels with --hard-weight 0.",
)
@input_option("--dev", "dev_file", type=PATH, help="Labelled file that the best epoch is selected on; as for train.")
@input_option("--corpus", "sources", multiple=True, help="Raw text, as for pretrain, instead of --train.")
@checkpoint_output_option
@loss_option(
    "--temperature", type=float, show_default="2", help="Divisor of both models' logits in the loss on predictions."
)
@loss_option(
    "--soft-weight",
    type=float,
    show_default="1; 5 with --corpus",
    help="Weight of the loss on the teacher's predictions.",
)
@loss_option(
    "--hard-weight",
    type=float,
    show_default="1; 2 with --corpus",
    help="Weight of the loss on labels or, with --corpus, on masked tokens; with 0, no labels are needed.",
)
@loss_option(
    "--hidden-weight",
    type=float,
    show_default="0; 1 with --corpus",
    help="Weight of the cosine distance between hidden states.",
)
@loss_option(
    "--attention-weight",
    type=float,
    show_default="0",
    help="Weight of the divergence between the attention of the last layers.",
)
@model_option(
    "--prune-tokens",
    metavar="SCHEDULE",
    show_default="the student's",
    help="Only with --train: the student drops tokens of low importance between layers, as for train.",
)
@columns_option
@corpus_options
@run_options()
def distill(
    teacher: str,
    student: str,
    train_file: Path | None,
    dev_file: Path | None,
    sources: tuple[str, ...],
    output: Path,
    prune_tokens: str | None,
    columns: dict[str, str] | None,
    resume: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a small student to imitate a larger teacher.

    With --train, the student learns a fine-tuned teacher's task; with --corpus, its masked language model.
    """
    from bert_models.distillation import CORPUS_DISTILLATION, TASK_DISTILLATION, distill_language_model
    from bert_models.distillation import distill as distill_task
    from bert_models.pretraining import PretrainSettings
    from bert_models.training import TrainSettings

    if bool(sources) == (train_file is not None) or (train_file is None and dev_file is not None):
        raise click.UsageError("expected --train, with --dev or without, or --corpus")
    reading = {name: options.pop(name) for name in ("document_start", "one_per_line", "split", "cache")}
    if not sources:
        _refuse([name for name, value in reading.items() if value], "--train")
    elif prune_tokens is not None:
        _refuse(["prune_tokens"], "--corpus")
    placement = pop_placement(options)
    chosen = drop_unset(options)
    defaults = CORPUS_DISTILLATION if sources else TASK_DISTILLATION
    weights = {part.name: chosen.pop(part.name) for part in fields(defaults) if part.name in chosen}
    distillation = replace(defaults, **weights)
    known = {part.name for part in fields(PretrainSettings if sources else TrainSettings)}
    _refuse([name for name in chosen if name not in known], "--corpus" if sources else "--train")
    run: dict[str, Any] = {
        "placement": placement, "resume": resume, "force": force, "progress": progress_printer(),
    }  # fmt: skip
    if train_file is not None:
        report = distill_task(
            teacher, student, train_file, dev_file, output, TrainSettings(**chosen), distillation,
            columns=columns, prune_tokens=prune_tokens, **run,
        )  # fmt: skip
    else:
        report = distill_language_model(
            teacher, student, read_corpus(sources, columns, reading), output, PretrainSettings(**chosen), distillation,
            cache=reading["cache"], **run,
        )  # fmt: skip
    print_training_report(report, "measured" if sources else "epochs", output, as_json=as_json)
    print_next("bert-export", "export", output, "BUNDLE")


def _refuse(names: Sequence[str], other: str) -> None:
    """Raise `click.UsageError` if there are names of parameters that cannot be combined with an option."""
    flags = {str(option.name): option.opts[0] for option in distill.params}
    if names:
        raise click.UsageError(f"{', '.join(flags[name] for name in names)} cannot be combined with {other}")


def _setting_options() -> list[click.Option]:
    """Return the settings of `train` and of `pretrain` as options without defaults, which depend on the data."""
    fine_tuning, pretraining = _options(fine_tuning_options), _options(pretraining_options)
    return [_merge(fine_tuning.get(name), pretraining.get(name)) for name in fine_tuning | pretraining]


def _options(decorator: Decorator) -> dict[str, click.Option]:
    """Return the options that a decorator adds, by parameter name."""
    command = click.command()(decorator(lambda: None))
    return {str(option.name): option for option in command.params if isinstance(option, click.Option)}


def _merge(fine_tuning: click.Option | None, pretraining: click.Option | None) -> click.Option:
    """Return an option that stands for one or both, and shows their defaults."""
    option = copy.copy(fine_tuning or pretraining)
    assert option is not None
    texts = [str(option.help)]
    if fine_tuning is None or pretraining is None:
        texts.append(f"Only with {'--corpus' if fine_tuning is None else '--train'}.")
    defaults = [_shown_default(fine_tuning), _shown_default(pretraining)]
    option.show_default = _join_defaults(*defaults) or False
    option.help = " ".join(texts)
    option.default = None
    return option


def _shown_default(option: click.Option | None) -> str:
    """Return the default that an option's help shows; empty for flags and options without one."""
    if option is None:
        return ""
    if isinstance(option.show_default, str):
        return option.show_default
    shown = isinstance(option.default, int | float | str) and not isinstance(option.default, bool)
    return str(option.default) if shown else ""


def _join_defaults(fine_tuning: str, pretraining: str) -> str:
    if fine_tuning and pretraining and fine_tuning != pretraining:
        return f"{fine_tuning}; {pretraining} with --corpus"
    return fine_tuning or pretraining


_before = next(i for i, param in enumerate(distill.params) if param.name == "devices")
distill.params[_before:_before] = _setting_options()
