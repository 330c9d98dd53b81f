"""`bert-export pretrain`."""

from pathlib import Path
from typing import Any

import click

from bert_export.cli.corpus_options import corpus_options, read_corpus
from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, input_option
from bert_export.cli.output import print_next, print_training_report
from bert_export.cli.param_types import CHECKPOINT, PATH
from bert_export.cli.progress import progress_printer
from bert_export.cli.training_options import checkpoint_output_option, pop_placement, pretraining_options, run_options

__all__ = ["pretrain"]


task_option = option_group("Task")
model_option = option_group("Model")


@click.command(
    cls=ExampleCommand,
    examples=[
        "# Go on with a checkpoint, on text of a domain",
        "bert-export pretrain --base checkpoint --corpus corpus.txt --steps 2000 \\",
        "    --output adapted",
        "# A new model",
        "bert-export pretrain --family bert --size mini --tokenizer vocabulary \\",
        "    --corpus corpus.txt --output mini",
    ],
)
@task_option(
    "--objective",
    type=click.Choice(["mlm", "mlm+nsp", "mlm+sop", "rtd"]),
    default="mlm",
    show_default=True,
    help="Masked language modelling, alone (mlm), with next-sentence prediction (nsp) or with sentence-order "
    "prediction (sop); or replaced-token detection (rtd).",
)
@model_option("--family", help="Model family of a new model; needs --size and --tokenizer.")
@model_option("--size", help="Size of a new model, such as tiny, small or base.")
@model_option(
    "--initializer-range",
    type=click.FloatRange(min=0, min_open=True),
    show_default="that of the size, 0.02 for BERT",
    help="Standard deviation of a new model's weights.",
)
@model_option("--tokenizer", type=PATH, help="Folder with a new model's tokenizer files.")
@model_option("--base", type=CHECKPOINT, help="Folder or hub id of a checkpoint to start from, instead of a new model.")
@input_option(
    "--corpus",
    "sources",
    multiple=True,
    required=True,
    help="Text (.txt, .md; blank lines between documents), JSONL, a folder of the datasets library, or dataset:NAME. "
    "Files may be compressed (.gz); repeatable.",
)
@columns_option
@corpus_options
@checkpoint_output_option
@pretraining_options
@run_options(config=False)
def pretrain(
    family: str | None,
    size: str | None,
    initializer_range: float | None,
    tokenizer: Path | None,
    base: str | None,
    sources: tuple[str, ...],
    columns: dict[str, str] | None,
    output: Path,
    cache: Path | None,
    resume: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Pre-train an encoder on raw text.

    The run starts from a new model (--family, --size, --tokenizer) or from a checkpoint (--base).
    """
    from bert_models.pretraining import InitialModel, PretrainSettings
    from bert_models.pretraining import pretrain as run

    placement = pop_placement(options)
    reading = {name: options.pop(name) for name in ("document_start", "one_per_line", "split")}
    settings = PretrainSettings(**options)
    start = InitialModel(family=family, size=size, tokenizer=tokenizer, base=base, initializer_range=initializer_range)
    report = run(
        start, read_corpus(sources, columns, reading), output, settings,
        cache=cache, placement=placement, resume=resume, force=force, progress=progress_printer(),
    )  # fmt: skip
    print_training_report(report, "measured", output, as_json=as_json)
    train = ("train", "--base", output, "--train", "FILE", "--dev", "FILE", "--output", "CHECKPOINT")
    print_next("bert-export", *train)
