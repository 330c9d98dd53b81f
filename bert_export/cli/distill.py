"""`bert-export distill`."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import click

from bert_export.cli.common import (
    CHECKPOINT,
    PATH,
    columns_option,
    given,
    json_option,
    print_training_report,
    progress_printer,
)
from bert_export.cli.config_file import config_option
from bert_export.cli.corpus_options import corpus_options, read_corpus
from bert_export.cli.pretrain import pretrain
from bert_export.cli.train import train
from bert_export.cli.training_options import placement_options

__all__ = ["distill"]

_OTHERS = {
    *("output", "columns", "config", "devices", "nodes", "strategy", "resume", "force", "as_json"),
    *("task", "base", "train_file", "dev_file", "problem_type", "crf", "bio", "pooling"),
    *("objective", "family", "size", "tokenizer", "sources", "document_start", "one_per_line", "split", "cache"),
}
"""Parameters of `train` and `pretrain` that say something else than how to train."""


def _recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags of `train` and of `pretrain` that say how to train, all without defaults: see `given`."""
    with_labels, with_corpus = _settings(train), _settings(pretrain)
    params = command.__dict__.setdefault("__click_params__", [])
    for name in reversed({**with_labels, **with_corpus}):
        first, second = with_labels.get(name), with_corpus.get(name)
        option = copy.copy(first or second)
        assert option is not None
        option.help = _help(option, _default(first), _default(second), both=first is not None and second is not None)
        if first is None or second is None:
            option.help += f" Only with {'--corpus' if first is None else '--train'}."
        option.default, option.show_default = None, False
        params.append(option)
    return command


def _settings(source: click.Command) -> dict[str, click.Option]:
    """The options of a command that become settings of its run."""
    options = [each for each in source.params if isinstance(each, click.Option)]
    return {str(each.name): each for each in options if each.name not in _OTHERS}


def _default(option: click.Option | None) -> int | float | str | None:
    """A default that is worth showing: of flags, and where there is none, it is not."""
    default = None if option is None else option.default
    return default if isinstance(default, int | float | str) and not isinstance(default, bool) else None


def _help(option: click.Option, first: Any, second: Any, *, both: bool) -> str:
    text = f"{option.help.rstrip('.')}. " if option.help else ""
    if both and second is not None and first != second:
        return f"{text}{'' if first is None else f'Default: {first}. '}Default with --corpus: {second}."
    default = second if first is None else first
    return text.rstrip() if default is None else f"{text}Default: {default}."


@click.command()
@click.option("--teacher", type=CHECKPOINT, required=True, help="Folder or hub id of a trained checkpoint.")
@click.option(
    "--student",
    required=True,
    help="How many of the teacher's layers to keep (such as 3), a size of its family for new weights (such as mini), "
    "or a checkpoint's folder or hub id.",
)
@click.option(
    "--train", "train_file", type=PATH, help="Training file, as for train; with --hard-weight 0 it needs no labels."
)
@click.option("--dev", "dev_file", type=PATH, help="Labelled file that decides which epoch is best.")
@click.option(
    "--corpus", "sources", multiple=True, help="Raw text, as for pretrain, in the place of --train and --dev."
)
@click.option("--output", type=PATH, required=True, help="Checkpoint to write.")
@click.option("--temperature", type=float, help="Softens the answers of both. Default: 2.")
@click.option("--soft-weight", type=float, help="Of the teacher's answers. Default: 1; with --corpus 5.")
@click.option(
    "--hard-weight", type=float, help="Of labels (0: not needed) or masked tokens. Default: 1; with --corpus 2."
)
@click.option("--hidden-weight", type=float, help="Of the hidden states' cosine distance. Default: 0; with --corpus 1.")
@click.option("--attention-weight", type=float, help="Of the last layers' attention. Default: 0.")
@columns_option
@corpus_options
@_recipe_options
@placement_options
@config_option
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--force", is_flag=True, help="Replace what an earlier run wrote.")
@json_option
def distill(
    teacher: str,
    student: str,
    train_file: Path | None,
    dev_file: Path | None,
    sources: tuple[str, ...],
    output: Path,
    columns: dict[str, str] | None,
    document_start: str | None,
    one_per_line: bool,
    split: str | None,
    cache: Path | None,
    devices: int | Literal["auto"] | None,
    nodes: int | None,
    strategy: str,
    resume: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a small student on what a large teacher answers.

    With --train and --dev, a fine-tuned teacher's task; with --corpus, its masked language model on raw text.
    """
    from bert_models.distillation import CORPUS_DISTILLATION, TASK_DISTILLATION, distill_language_model
    from bert_models.distillation import distill as run
    from bert_models.pretraining import PretrainSettings
    from bert_models.training import Placement, TrainSettings

    if bool(sources) == (train_file is not None) or (train_file is None) != (dev_file is None):
        raise click.UsageError("expected --train with --dev, or --corpus")
    defaults = CORPUS_DISTILLATION if sources else TASK_DISTILLATION
    chosen = given(options)
    weights = {each.name: chosen.pop(each.name) for each in fields(defaults) if each.name in chosen}
    distillation = replace(defaults, **weights)
    known = {each.name for each in fields(PretrainSettings if sources else TrainSettings)}
    flags = {str(option.name): option.opts[0] for option in distill.params}
    if strange := [flags[name] for name in chosen if name not in known]:
        raise click.UsageError(f"{', '.join(strange)} cannot go with {'--corpus' if sources else '--train'}")
    of_corpus = {
        "--document-start": document_start, "--one-per-line": one_per_line, "--split": split, "--cache": cache,
    }  # fmt: skip
    if not sources and (strange := [name for name, value in of_corpus.items() if value]):
        raise click.UsageError(f"{', '.join(strange)} cannot go with --train")
    placement = Placement(devices=devices, nodes=nodes, strategy=strategy)
    common: dict[str, Any] = {"placement": placement, "resume": resume, "force": force, "progress": progress_printer()}
    if train_file is not None and dev_file is not None:
        report = run(
            teacher, student, train_file, dev_file, output, TrainSettings(**chosen), distillation,
            columns=columns, **common,
        )  # fmt: skip
    else:
        corpus = read_corpus(sources, columns, document_start=document_start, one_per_line=one_per_line, split=split)
        report = distill_language_model(
            teacher, student, corpus, output, PretrainSettings(**chosen), distillation, cache=cache, **common
        )
    print_training_report(report, "measured" if sources else "epochs", output, as_json=as_json)
