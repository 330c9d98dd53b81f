"""`bert-export tokenizer`."""

from dataclasses import asdict
from pathlib import Path

import click

from bert_export.cli.common import PATH, columns_option, json_option, print_json, progress_printer

__all__ = ["tokenizer"]


@click.command()
@click.argument("corpus", nargs=-1, required=True, type=PATH)
@click.option(
    "--kind",
    type=click.Choice(["wordpiece", "bpe", "unigram"]),
    required=True,
    help="wordpiece as BERT has it, byte-level bpe as RoBERTa, unigram as ALBERT.",
)
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="Tokens, special ones included.")
@click.option("--output", type=PATH, required=True, help="Folder to write.")
@click.option("--cased", is_flag=True, help="Keep upper case and accents; bpe always does.")
@click.option(
    "--min-frequency",
    type=click.IntRange(min=1),
    help="wordpiece, bpe: how often two pieces must stand side by side to become one. Default: 2.",
)
@columns_option
@click.option("--force", is_flag=True, help="Replace an existing tokenizer folder.")
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
    """Train a tokenizer on the texts of CORPUS: files with one a line (.txt, .md) or a field text (.jsonl, .csv, .tsv;
    .gz), or datasets of the datasets library: a folder, or dataset:NAME.

    The folder is read by transformers and by whatever here takes a checkpoint's tokenizer.
    """
    from bert_models.tokenizer_files import train_tokenizer

    made = train_tokenizer(
        corpus, kind, vocab_size, output,
        cased=cased, min_frequency=min_frequency, columns=columns, force=force, progress=progress_printer(),
    )  # fmt: skip
    if as_json:
        print_json(asdict(made))
        return
    fewer = made.vocab_size < made.requested_vocab_size
    asked = f" of the {made.requested_vocab_size} asked for: the corpus has no more" if fewer else ""
    click.echo(f"{made.vocab_size} tokens{asked}, from {made.texts} texts")
    click.echo(f"wrote {output}")
