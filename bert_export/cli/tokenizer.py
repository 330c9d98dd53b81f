"""`bert-export tokenizer`."""

from dataclasses import asdict
from pathlib import Path

import click

from bert_export.cli.help import ExampleCommand, option_group
from bert_export.cli.options import columns_option, force_option, json_option, output_option
from bert_export.cli.output import print_json, print_next
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import stage_progress

__all__ = ["tokenizer"]


vocabulary_option = option_group("Vocabulary")


@click.command(
    cls=ExampleCommand,
    examples=[
        "bert-export tokenizer corpus.txt --kind wordpiece --vocab-size 30000 \\",
        "    --output vocabulary",
    ],
)
@click.argument("corpus", nargs=-1, required=True, type=PATH)
@vocabulary_option(
    "--kind",
    type=click.Choice(["wordpiece", "bpe", "unigram"]),
    required=True,
    help="wordpiece as in BERT, byte-level bpe as in RoBERTa, or unigram as in ALBERT.",
)
@vocabulary_option(
    "--vocab-size", type=click.IntRange(min=1), required=True, help="Number of tokens, special tokens included."
)
@output_option("--output", type=PATH, required=True, help="Folder to write the tokenizer's files to.")
@vocabulary_option("--cased", is_flag=True, help="Keep case and accents; bpe always does.")
@vocabulary_option(
    "--min-frequency",
    type=click.IntRange(min=1),
    show_default="2",
    help="wordpiece, bpe: how often a pair of subword tokens must occur to be merged.",
)
@columns_option
@force_option
@json_option
def tokenizer(
    corpus: tuple[Path, ...],
    kind: str,
    vocab_size: int,
    output: Path,
    cased: bool,
    min_frequency: int | None,
    columns: dict[str, str] | None,
    force: bool,
    as_json: bool,
) -> None:
    """Train a tokenizer on the texts of CORPUS.

    CORPUS is files with one text per line (.txt, .md) or with a field text (.jsonl, .csv, .tsv), optionally compressed
    (.gz); or datasets of the datasets library: a folder, or dataset:NAME.

    transformers and the other commands read the folder as a checkpoint's tokenizer.
    """
    from bert_models.tokenizer_files import train_tokenizer

    with stage_progress() as progress:
        trained = train_tokenizer(
            corpus, kind, vocab_size, output,
            cased=cased, min_frequency=min_frequency, columns=columns, force=force, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(asdict(trained))
        return
    fewer = trained.vocab_size < trained.requested_vocab_size
    requested = f" of the {trained.requested_vocab_size} requested: the corpus has no more" if fewer else ""
    click.echo(f"{trained.vocab_size} tokens{requested}, from {trained.texts} texts")
    click.echo(f"wrote {output}")
    model = ("--family", "FAMILY", "--size", "SIZE", "--tokenizer", output)
    print_next("bert-export", "pretrain", *model, "--corpus", "FILE", "--output", "CHECKPOINT")
