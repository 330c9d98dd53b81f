"""`bert-export pretrain`."""

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
from bert_export.cli.corpus_options import corpus_options, read_corpus
from bert_export.cli.training_options import placement_options

__all__ = ["pretrain"]


@click.command()
@click.option(
    "--objective",
    type=click.Choice(["mlm", "mlm+nsp", "mlm+sop", "rtd"]),
    default="mlm",
    show_default=True,
    help="Masked tokens, with next sentences or sentence order besides; or replaced tokens.",
)
@click.option("--family", help="Family of a new model, with --size and --tokenizer.")
@click.option("--size", help="Its size, such as tiny, small or base.")
@click.option(
    "--initializer-range",
    type=click.FloatRange(min=0, min_open=True),
    help="Standard deviation of its new weights, by default the size's own, BERT's 0.02.",
)
@click.option("--tokenizer", type=PATH, help="Folder with its tokenizer's files.")
@click.option("--base", type=CHECKPOINT, help="Folder or hub id to go on from, in the place of a new model.")
@click.option(
    "--corpus",
    "sources",
    multiple=True,
    required=True,
    help="Text (.txt, .md; blank lines between documents), JSONL, a folder of the datasets library, or dataset:NAME; "
    "files may be .gz and the option may be repeated.",
)
@columns_option
@corpus_options
@click.option("--output", type=PATH, required=True, help="Checkpoint to write.")
@click.option("--steps", type=int, default=10_000, show_default=True)
@click.option("--batch-size", type=int, default=32, show_default=True, help="Sequences in the batch of one process.")
@click.option(
    "--accumulate",
    "gradient_accumulation_steps",
    type=int,
    default=1,
    show_default=True,
    help="Batches whose gradients make one step.",
)
@click.option("--lr", type=float, default=5e-4, show_default=True, help="Peak learning rate.")
@click.option("--warmup-ratio", type=float, default=0.1, show_default=True)
@click.option("--weight-decay", type=float, default=0.01, show_default=True)
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Longest sequence.")
@click.option(
    "--mask-share",
    "mlm_probability",
    type=float,
    default=0.15,
    show_default=True,
    help="Share of tokens that are predicted.",
)
@click.option("--whole-words", is_flag=True, help="Mask whole words.")
@click.option("--static-masking", is_flag=True, help="The same masks in every epoch.")
@click.option(
    "--dev-share",
    "dev_fraction",
    type=float,
    default=0.01,
    show_default=True,
    help="Share of documents that are held out.",
)
@click.option("--eval-every", type=int, default=500, show_default=True, help="Steps between two measurements.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]), default="auto", show_default=True)
@placement_options
@click.option("--resume", is_flag=True, help="Go on from the last measurement of an interrupted run.")
@click.option("--force", is_flag=True, help="Replace what an earlier run wrote.")
@json_option
def pretrain(
    family: str | None,
    size: str | None,
    initializer_range: float | None,
    tokenizer: Path | None,
    base: str | None,
    sources: tuple[str, ...],
    columns: dict[str, str] | None,
    document_start: str | None,
    one_per_line: bool,
    split: str | None,
    output: Path,
    cache: Path | None,
    devices: int | Literal["auto"] | None,
    nodes: int | None,
    strategy: str,
    resume: bool,
    force: bool,
    as_json: bool,
    **recipe: int | float | str | bool,
) -> None:
    """Pre-train an encoder on raw text, from scratch or from a checkpoint."""
    from bert_models.pretraining import InitialModel, PretrainSettings
    from bert_models.pretraining import pretrain as run
    from bert_models.training import Placement

    settings = PretrainSettings(**recipe)  # type: ignore[arg-type] # click has checked the types
    start = InitialModel(family=family, size=size, tokenizer=tokenizer, base=base, initializer_range=initializer_range)
    corpus = read_corpus(sources, columns, document_start=document_start, one_per_line=one_per_line, split=split)
    report = run(
        start, corpus, output, settings,
        cache=cache, placement=Placement(devices=devices, nodes=nodes, strategy=strategy),
        resume=resume, force=force, progress=progress_printer(),
    )  # fmt: skip
    print_training_report(report, "measured", output, as_json=as_json)
